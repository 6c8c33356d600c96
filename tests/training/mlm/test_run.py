"""`train_mlm.py`, from its arguments to what it leaves."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, TrainingArguments

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.masking import MaskedBlocks, MaskedText, Masking
from ngram_wdr_hf.evaluation.scores import score_masked
from ngram_wdr_hf.training.common.command_line import run_script
from ngram_wdr_hf.training.mlm.trainer import EpochCallback, MlmTrainer
from tests.support.errors import assert_names, raises_naming
from tests.support.masked import plain_masked, stream_of, tiny_masked
from tests.support.mlm_runs import QUICK, SCRIPT, run
from tests.support.processes import in_two_processes
from tests.support.scripts import card_code, metrics_of


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForMaskedLM.from_pretrained(folder).state_dict()


@pytest.mark.plots
def test_run_and_its_files(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    command = [*files, "--output_dir", str(folder), *QUICK, "--max_steps", "60", "--eval_steps", "30"]
    (result,) = run(*command)
    printed = capsys.readouterr().out
    for name in ("README.md", "metrics.json", "model.safetensors", "run.yaml", "tokenizer.json", "training.png"):
        assert (folder / name).stat().st_size > 0, name
    metrics = metrics_of(folder)
    assert metrics["model"] == "wdr N=3" and metrics["ensemble_lambda"] is None
    for split in ("validation", "test"):
        figures = metrics["splits"][split]
        row = rf"wdr N=3 +{split} +{figures['num_masked']:,} +{figures['perplexity']:.2f} +{figures['accuracy']:.2%}"
        assert re.search(row, printed)
        assert f"{figures['perplexity']:.2f}" in (folder / "README.md").read_text()
    validation = metrics["splits"]["validation"]
    # An untrained model's perplexity is about the vocabulary size.
    assert validation["perplexity"] < 50 and validation["accuracy"] > 0.1
    assert "step     30  validation perplexity" in printed and "accuracy" in printed and "masked word" in printed
    logged = [entry for entry in metrics["history"] if "head_2_loss" in entry and "loss" in entry]
    assert len(logged) == 60 and logged[-1]["head_2_loss"] < logged[0]["head_2_loss"]
    assert len(result.guesses) == 3 and all("<mask>" in text for text, _, _ in result.guesses)
    assert "lambda" not in (folder / "README.md").read_text()
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert type(model).__name__ == "WDRNgramModernBertForMaskedLM" and len(model.ngram_heads) == 2
    assert AutoTokenizer.from_pretrained(folder).model_max_length == model.config.max_position_embeddings == 16
    exec(card_code(folder), {})
    assert len(ast.literal_eval(capsys.readouterr().out)) == 5
    # Like CrammedBERT, only the heads have biases.
    assert all("ngram_heads" in name for name, _ in model.named_parameters() if name.endswith("bias"))

    # Repeating the command, and evaluating only, give the same scores.
    (again,) = run(*command)
    assert again.scores == result.scores
    (alone,) = run("--do_train", "false", "--model_name_or_path", str(folder), "--output_dir", str(tmp_path / "x"))
    for split, scores in alone.scores.items():
        assert scores.head_counts == result.scores[split].head_counts
        # Other batches round differently.
        assert scores.perplexity == pytest.approx(result.scores[split].perplexity, rel=1e-5)


def test_scores_are_those_of_the_masked_words(finished_mlm):
    folder = finished_mlm.folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    text = MaskedText(stream_of(tokenizer, 75), 16, Masking(tokenizer))
    nll, correct, counts, heads = 0.0, 0, torch.zeros(3), torch.zeros(3)
    for block in text:
        with torch.no_grad():
            output = model(**{name: ids[None] for name, ids in block.items()})
            logits = model(input_ids=block["input_ids"][None], attention_mask=block["attention_mask"][None]).logits[0]
        for place in (block["labels"] != -100).nonzero()[:, 0].tolist():
            nll -= float(logits[place].log_softmax(-1)[block["labels"][place]])
            correct += int(logits[place].argmax() == block["labels"][place])
        counts += output.head_counts
        heads += output.head_losses * output.head_counts
    scores = score_masked(model, text, batch_size=2)
    assert scores.nll_sum == pytest.approx(nll, rel=1e-4) and scores.num_correct == correct
    assert scores.head_counts == counts.tolist() and scores.num_masked > 10
    assert scores.head_nlls == pytest.approx((heads / counts).tolist(), rel=1e-4)
    # Two processes with half of the blocks each, padded with blocks without targets.
    sums = []
    for index in range(2):
        values = []
        score_masked(model, text, 2, index, 2, add_up=lambda value, values=values: (values.append(value), value)[1])
        sums.append(values)
    totals = iter([one + other for one, other in zip(*sums, strict=True)])
    together = score_masked(model, text, 2, 0, 2, add_up=lambda _: next(totals))
    assert together.num_correct == scores.num_correct and together.head_counts == scores.head_counts
    assert together.nll_sum == pytest.approx(scores.nll_sum)


def test_resumed_run(files, tmp_path, monkeypatch):
    """The weights are exactly those of an uninterrupted run, which needs the same masks."""
    complete, parts = tmp_path / "complete", tmp_path / "parts"
    command = [
        *files,
        *QUICK,
        "--max_steps",
        "14",
        "--eval_steps",
        "5",
        "--masking",
        "span",
        "--wdr_compose",
        "masked",
    ]
    run(*command, "--output_dir", str(complete))
    steps = []

    def interrupt(self, *args, **kwargs):
        steps.append(None)
        if len(steps) == 8:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    step = MlmTrainer.training_step
    monkeypatch.setattr(MlmTrainer, "training_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(*command, "--output_dir", str(parts))
    run(*command, "--output_dir", str(parts))
    # Seven steps before and nine after: it resumed from the checkpoint at step 5.
    assert len(steps) == 8 + 9
    expected = weights_of(complete)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(parts).items())


@pytest.mark.plots
def test_compare(files, tmp_path, capsys):
    results = run(*files, *QUICK, "--output_dir", str(tmp_path / "run"), "--compare", "--preset", "tiny-bert")
    assert [result.name for result in results] == ["wdr N=3", "plain", "wdr N=3, masked tokens"]
    printed = capsys.readouterr().out
    assert re.search(r"plain +test", printed) and (tmp_path / "run" / "comparison_training.png").stat().st_size > 0
    for folder in ("run/plain", "run/masked"):
        assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / folder)).__name__ == "WDRNgramBertForMaskedLM"
    counts = [result.scores["test"].head_counts for result in results]
    assert counts[0][0] == counts[1][0] == counts[2][0] and counts[2][1] < counts[0][1]


def test_from_a_plain_checkpoint(finished_mlm, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(finished_mlm.folder)
    tokenizer.save_pretrained(tmp_path / "plain")
    plain_masked("bert", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "plain")
    (result,) = run(*files, *QUICK, "--model_name_or_path", str(tmp_path / "plain"), "--output_dir", "default")
    assert result.name == "wdr N=3"
    for mode in ("full", "heads", "lora"):
        options = ["--model_name_or_path", str(tmp_path / "plain"), "--train_mode", mode, "--ngram_size", "2"]
        run(*files, *QUICK, *options, "--output_dir", str(tmp_path / mode), "--metric_for_best_model", "loss")
        model = AutoModelForMaskedLM.from_pretrained(tmp_path / mode)
        assert type(model).__name__ == "WDRNgramBertForMaskedLM" and len(model.ngram_heads) == 1
        stock = plain_masked("bert", vocab_size=len(tokenizer)).state_dict()
        same = all(torch.equal(stock[name], tensor) for name, tensor in model.state_dict().items() if name in stock)
        assert same == (mode == "heads")


def test_streamed_text(files, tmp_path):
    (result,) = run(*files, *QUICK, "--output_dir", str(tmp_path / "run"), "--streaming", "true")
    assert result.scores["test"].num_masked > 0 and len(result.history) > 4


def test_heads_without_targets_have_no_loss(files, tmp_path, capsys):
    """With three masked words per block, there are never four in a row."""
    options = ["--wdr_compose", "masked", "--mlm_probability", "0.2", "--ngram_size", "4", "--output_dir"]
    (result,) = run(*files, *QUICK, *options, str(tmp_path / "run"), "--metric_for_best_model", "heads_loss")
    scores = result.scores["validation"]
    assert scores.head_counts[3] == 0 and scores.head_nlls[3] is None and scores.head_nlls[0] > 0
    assert metrics_of(tmp_path / "run")["splits"]["validation"]["head_3_loss"] is None
    evaluations = [entry for entry in result.history if "eval_loss" in entry]
    assert evaluations and not any("eval_head_3_loss" in entry for entry in evaluations)
    for entry in evaluations:
        heads = [value for name, value in entry.items() if name.startswith("eval_head_")]
        assert entry["eval_heads_loss"] == pytest.approx(sum(heads) / len(heads))
    assert all(value > 0 for entry in result.history for name, value in entry.items() if name.startswith("head_"))
    assert " 0.000" not in capsys.readouterr().out
    alone = ["--mlm_probability", "0.05", "--metric_for_best_model", "heads_loss"]
    with raises_naming(InputError, "`--metric_for_best_model heads_loss`", "target"):
        run(*files, *QUICK, *options, str(tmp_path / "alone"), *alone)


def test_logged_losses_are_weighted_by_targets(tmp_path):
    """A batch with few targets has a small weight."""
    model, items = tiny_masked("bert", ngram_size=2, wdr_compose="masked"), []
    for num_masked in (1, 2, 7):
        labels = torch.full((12,), -100)
        labels[:num_masked] = torch.arange(5, 5 + num_masked)
        items.append({"input_ids": torch.arange(5, 17), "labels": labels})
    arguments = TrainingArguments(
        tmp_path, max_steps=3, per_device_train_batch_size=1, learning_rate=0.0, logging_steps=3, report_to=[]
    )
    trainer = MlmTrainer(model, arguments, train_dataset=items)
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    outputs = [model(**{name: ids[None] for name, ids in item.items()}) for item in items]
    sums = sum(output.head_losses * output.head_counts for output in outputs)
    counts = sum(output.head_counts for output in outputs)
    assert counts.tolist() == [10, 7]
    names = ("masked_word_loss", "head_1_loss")
    assert [logged[name] for name in names] == pytest.approx((sums / counts).tolist(), rel=1e-5)


def test_evaluation_with_other_masks(files, tmp_path):
    """Evaluation masks as in training, unless options say otherwise."""
    folder = str(tmp_path / "run")
    run(*files, *QUICK, "--masking", "span", "--mlm_probability", "0.3", "--output_dir", folder)
    text = files[files.index("--test_file") : files.index("--test_file") + 2]
    scores = {}
    for name, options in {
        "as trained": [],
        "the same": ["--masking", "span", "--mlm_probability", "0.3"],
        "tokens": ["--masking", "token"],
        "fewer": ["--mlm_probability", "0.15"],
    }.items():
        again = ["--do_train", "false", "--model_name_or_path", folder, *text, "--output_dir", str(tmp_path / "x")]
        (result,) = run(*again, *options)
        scores[name] = result.scores["test"]
    assert scores["as trained"] == scores["the same"]
    assert scores["tokens"].num_masked == scores["as trained"].num_masked
    assert scores["tokens"].nll_sum != scores["as trained"].nll_sum
    assert scores["fewer"].num_masked < 0.6 * scores["as trained"].num_masked


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--masking", "words"], "`--masking`"),
        (["--mlm_probability", "0"], "`--mlm_probability`"),
        (["--mlm_probability", "1.5"], "`--mlm_probability`"),
        (["--wdr_compose", "none"], "`--wdr_compose`"),
        (["--ngram_target", "simple"], "`--ngram_target`"),
        (["--block_size", "2"], "`--block_size`"),
        (["--ngram_size", "16"], "N = 16"),
        (["--metric_for_best_model", "best_perplexity"], "`--metric_for_best_model`"),
        (["--lambda_grid", "0.1"], "lambda_grid"),
        (["--dataloader_drop_last", "true", "--per_device_train_batch_size", "900"], "`--dataloader_drop_last`"),
    ],
)
def test_bad_options(files, tmp_path, options, name):
    with raises_naming(InputError, name):
        run(*files, *QUICK, "--output_dir", str(tmp_path / "run"), *options)


def test_checkpoints_of_another_kind(finished_mlm, files, checkpoint, tmp_path):
    with raises_naming(InputError, "`mask_token`"):
        run(*files, *QUICK, "--output_dir", str(tmp_path / "run"), "--model_name_or_path", checkpoint)
    with raises_naming(InputError, "ngram-wdr mlm"):
        options = ["--model_name_or_path", checkpoint, "--tokenizer", str(finished_mlm.folder)]
        run(*files, *QUICK, "--output_dir", str(tmp_path / "run"), *options)
    from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
    from ngram_wdr_hf.training.clm.run import run_clm

    command = [*files, "--output_dir", str(tmp_path / "run"), "--model_name_or_path", str(finished_mlm.folder)]
    with raises_naming(InputError, "ngram-wdr clm"):
        run_clm(parse_clm_arguments(command, "train_clm.py"))
    tiny_masked("bert").save_pretrained(tmp_path / "no_tokenizer")
    with raises_naming(InputError, "tokenizer", "no_tokenizer"):
        run(
            *files,
            *QUICK,
            "--output_dir",
            str(tmp_path / "run"),
            "--model_name_or_path",
            str(tmp_path / "no_tokenizer"),
        )


def run_in_one_of_two(rank: int, folder: Path, arguments: list[str]) -> None:
    run(*arguments)


def test_two_processes(files, tmp_path, monkeypatch):
    """Two processes give the same result, with new masks in every epoch."""
    text = tmp_path / "short.txt"
    text.write_text("".join(Path(files[files.index("--train_file") + 1]).read_text().splitlines(True)[:12]))
    files = ["--train_file", str(text), *files[files.index("--validation_file") :]]
    options = ["--dataloader_drop_last", "true", "--adam_epsilon", "1e-5", "--max_steps", "12", "--eval_steps", "6"]
    halves = [*QUICK, *options, "--per_device_train_batch_size", "2", "--output_dir", str(tmp_path / "two")]
    in_two_processes(run_in_one_of_two, tmp_path, [*files, *halves])
    run(*files, *QUICK, *options, "--output_dir", str(tmp_path / "one"))
    one, two = (metrics_of(tmp_path / name)["splits"]["validation"] for name in ("one", "two"))
    assert one.pop("head_counts") == two.pop("head_counts")
    assert two == pytest.approx(one, rel=1e-4)
    # These are several epochs: with the same masks in all of them, the result differs.
    assert metrics_of(tmp_path / "one")["history"][-1]["epoch"] > 2
    monkeypatch.setattr(EpochCallback, "on_epoch_begin", lambda *args, **kwargs: None)
    monkeypatch.setattr(MaskedBlocks, "set_epoch", lambda self, epoch: None)
    run(*files, *QUICK, *options, "--output_dir", str(tmp_path / "same_masks"))
    assert metrics_of(tmp_path / "same_masks")["splits"]["validation"]["perplexity"] != pytest.approx(
        one["perplexity"], rel=1e-3
    )


def test_help_and_an_error(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    assert "--wdr_compose" in shown and "--use_mtp" not in shown
    assert run_script(lambda arguments: run(*arguments), ["--masking", "none"]) == 2
    assert_names(capsys.readouterr().err, "error: ", "`--masking`", "'none'")
