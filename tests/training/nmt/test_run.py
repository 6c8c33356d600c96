"""`train_nmt.py`, from its arguments to what it leaves."""

import json
import re

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel

import ngram_wdr_hf.training.nmt.run
from ngram_wdr_hf import WDRNgramMarianMTModel
from ngram_wdr_hf.method.ensemble import describe_ensemble
from ngram_wdr_hf.training.common.run_folder import RunFolder
from ngram_wdr_hf.training.nmt.arguments import parse_nmt_arguments
from ngram_wdr_hf.training.nmt.data import load_pairs, tokenize_nmt
from ngram_wdr_hf.training.nmt.translator import Translator
from tests.support.nmt_runs import NUM_PAIRS, QUICK, run, toy_pairs, translations_of, with_bleu
from tests.support.processes import run_and_kill
from tests.support.scripts import as_arguments, metrics_of

LEAVES = ["README.md", "config.json", "generation_config.json", "lambda_sweep.png", "metrics.json"]
LEAVES += ["model.safetensors", "run.yaml", "test_translations.jsonl", "tokenizer.json", "training.png"]


def by_lambda(split: dict, name: str) -> dict[float, float]:
    return dict(zip(split["lambda"], split[name], strict=True))


def test_run_and_its_files(finished_nmt):
    folder, printed = finished_nmt.folder, finished_nmt.printed
    for name in LEAVES:
        assert (folder / name).stat().st_size > 0, name
    metrics = metrics_of(folder)
    validation, test = metrics["splits"]["validation"], metrics["splits"]["test"]
    result = finished_nmt.result
    assert metrics["model"] == "wdr N=3" and metrics["settings"]["learning_rate"] == 1e-2
    assert validation["lambda"] == validation["perplexity_lambda"] == [0.0, 0.2, 0.4, 0.6]
    assert test["lambda"] == sorted({0.0, result.best_lambda})
    assert validation["ensembles"].keys() == test["ensembles"].keys() == result.ensembles().keys()
    assert [*result.ensembles()] == ["without heads", "temperature", "best λ", "fitted"]
    # Fitted to the NLL: on the validation set, no other ensemble has a lower perplexity.
    perplexities = validation["ensemble_perplexity"]
    assert min([*perplexities.values(), *validation["token_perplexity"]]) == perplexities["fitted"]
    assert perplexities["temperature"] < perplexities["without heads"]
    for name, count in (("validation", 24), ("test", 22)):
        split = metrics["splits"][name]
        assert split["num_sentences"] == count
        assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:.+", split["bleu_signature"])
        assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:yes\|nc:6\|nw:0\|.+", split["chrf_signature"])
        # An untrained model's perplexity would be about 350.
        assert 1 < min(split["token_perplexity"]) < 20
        assert split["next_word_loss"] < 4 and split["head_2_loss"] < 4
    # Each target is its tokens and the end token.
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert test["num_tokens"] == sum(len(tokenizer(pair[1]).input_ids) for pair in toy_pairs(22, 2))

    evaluations = [entry for entry in metrics["history"] if "eval_perplexity" in entry]
    assert [entry["step"] for entry in evaluations] == [50, 100, 150]
    losses = [entry for entry in metrics["history"] if "head_2_loss" in entry]
    assert len(losses) == 150 and losses[-1]["loss"] < losses[0]["loss"] / 2
    best = min(evaluations, key=lambda entry: entry["eval_fitted_perplexity"])
    assert validation["token_perplexity"][0] == pytest.approx(best["eval_perplexity"], rel=1e-5)

    chosen, card = result.translations["test"][result.ensemble], (folder / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"wdr N=3 +test +22 .* {chosen.bleu:.2f}\*", printed)
    assert f"{chosen.bleu:.2f} ★" in card and f"{chosen.chrf:.2f} ★" in card
    assert f"`{test['bleu_signature']}`" in card and "pipeline_tag: translation" in card
    examples = re.findall(r"source +(.+)\nreference +(.+)\nplain, λ=0 +(.+)", card)
    assert len(examples) == 5
    known = {(row["source"], row["reference"], row["plain"]) for row in translations_of(folder)}
    assert set(examples) <= known
    label = f"ensemble, {describe_ensemble(result.ensemble)}" if result.ensemble else "plain, λ=0"
    assert all(f"reference{' ' * (len(label) - 9)}" in part for part in printed.split("source ")[1:])


def test_scores_match_the_saved_translations(finished_nmt):
    """Recompute the scores with sacrebleu from the run's files."""
    rows, metrics = translations_of(finished_nmt.folder), metrics_of(finished_nmt.folder)
    assert [(row["source"], row["reference"]) for row in rows] == toy_pairs(NUM_PAIRS["test"], seed=2)
    result = finished_nmt.result
    chosen = next(name for name, ensemble in result.ensembles().items() if ensemble == result.ensemble)
    references = [[row["reference"] for row in rows]]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        for side, ensemble in (("plain", "without heads"), ("hypothesis", chosen)):
            expected = metric.corpus_score([row[side] for row in rows], references).score
            assert metrics["splits"]["test"]["ensembles"][ensemble][name] == pytest.approx(expected, abs=1e-9)
            assert expected > 1


def test_best_ensemble_on_validation_is_chosen(finished_nmt):
    metrics, result = metrics_of(finished_nmt.folder), finished_nmt.result
    bleu = {ensemble: scores.bleu for ensemble, scores in result.translations["validation"].items()}
    assert len(bleu) == 6 and len(set(bleu.values())) > 1
    assert bleu[result.ensemble] == max(bleu.values())
    over_lambda = by_lambda(metrics["splits"]["validation"], "bleu")
    assert result.best_lambda == max(over_lambda, key=over_lambda.get)
    saved = metrics["ensemble_lambda"] if metrics["ensemble_weights"] is None else tuple(metrics["ensemble_weights"])
    assert saved == result.ensemble


def test_smallest_of_equally_good_lambdas_is_chosen(marian, pairs, tmp_path, monkeypatch):
    with_bleu(monkeypatch, [1.0, 5.0, 5.0, 2.0])
    options = [*QUICK, "--lambda_grid", "0.6", "0.4", "0.2", "--eval_strategy", "no", "--ensemble", "lambda"]
    (result,) = run("--model_name_or_path", marian, *pairs, "--output_dir", str(tmp_path / "run"), *options)
    # λ = 0 is always evaluated.
    assert list(result.translations["validation"]) == [0.0, 0.2, 0.4, 0.6]
    assert result.ensemble == 0.2 and list(result.translations["test"]) == [0.0, 0.2]
    assert WDRNgramMarianMTModel.from_pretrained(tmp_path / "run").config.ensemble_lambda == 0.2
    assert "the ensemble has λ=0.2." in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


def test_repeated_command_does_not_train(finished_nmt, capsys):
    weights = (finished_nmt.folder / "model.safetensors").stat().st_mtime_ns
    before = metrics_of(finished_nmt.folder)
    (again,) = run(*finished_nmt.command, "--output_dir", str(finished_nmt.folder))
    assert again.translations == finished_nmt.result.translations and again.history == finished_nmt.result.history
    assert "step " not in capsys.readouterr().out
    assert (finished_nmt.folder / "model.safetensors").stat().st_mtime_ns == weights
    assert metrics_of(finished_nmt.folder) == before


def test_tokenizer_of_another_run(finished_nmt, pairs, tmp_path):
    """A new model gets the tokenizer's vocabulary size."""
    options = ["--tokenizer", str(finished_nmt.folder), *pairs, *QUICK, "--max_steps", "1", "--eval_strategy", "no"]
    (result,) = run(*options, "--output_dir", str(tmp_path / "run"), "--ngram_size", "2")
    tokenizer = (finished_nmt.folder / "tokenizer.json").read_bytes()
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == tokenizer
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").config
    assert config.vocab_size == len(AutoTokenizer.from_pretrained(finished_nmt.folder)) < 400
    assert (config.d_model, config.ngram_size, result.name) == (128, 2, "wdr N=2")


def test_checkpoint_with_the_best_bleu_is_kept(marian, pairs, tmp_path, monkeypatch):
    """The loss always falls; early stopping follows two evaluations with a lower BLEU."""
    scored = with_bleu(monkeypatch, [1.0, 9.0, 8.0, 3.0])
    options = [*QUICK, "--metric_for_best_model", "bleu", "--patience", "2", "--max_steps", "20"]
    options += as_arguments(learning_rate=2e-3, save_total_limit=9, ngram_size=2)
    (result,) = run("--model_name_or_path", marian, *pairs, "--output_dir", str(tmp_path / "run"), *options)
    evaluations = [entry for entry in result.history if "eval_loss" in entry]
    assert [entry["eval_bleu"] for entry in evaluations] == [1.0, 9.0, 8.0, 3.0]
    losses = [entry["eval_loss"] for entry in evaluations]
    assert losses == sorted(losses, reverse=True) and [entry["step"] for entry in evaluations] == [2, 4, 6, 8]
    kept, best, last = (
        load_file(tmp_path / "run" / name / "model.safetensors") for name in ("", "checkpoint-4", "checkpoint-8")
    )
    assert all(torch.equal(value, best[name]) for name, value in kept.items())
    assert not all(torch.equal(value, last[name]) for name, value in kept.items())
    # The kept model reproduces the translations of the second evaluation, without the ensemble.
    assert scored[4] == scored[1] != scored[3] and len(scored[1]) == NUM_PAIRS["validation"]
    assert evaluations[1]["eval_chrf"] == result.translations["validation"][0.0].chrf


def test_early_stopping_keeps_the_best(finished_nmt, pairs, tmp_path):
    """With a destructive learning rate, and the loss as metric."""
    options = [*QUICK, "--max_steps", "40", "--patience", "2", "--lr_scheduler_type", "constant"]
    options += ["--learning_rate", "0.1", "--lambda_grid", "0", "--metric_for_best_model", "loss"]
    (result,) = run("--model_name_or_path", str(finished_nmt.folder), *pairs, "--output_dir", str(tmp_path), *options)
    losses = [entry["eval_loss"] for entry in result.history if "eval_loss" in entry]
    assert len(losses) == losses.index(min(losses)) + 3 < 20
    assert result.scores["validation"].nll(0.0) == pytest.approx(min(losses), rel=1e-4)


@pytest.mark.parametrize("train_mode", ["heads", "lora"])
def test_trained_weights(marian, pairs, tmp_path, train_mode):
    folder = tmp_path / "run"
    options = ["--train_mode", train_mode, *pairs, *QUICK, "--ngram_size", "3", "--learning_rate", "1e-2"]
    run("--model_name_or_path", marian, *options, "--output_dir", str(folder))
    before, after = MarianMTModel.from_pretrained(marian), WDRNgramMarianMTModel.from_pretrained(folder)
    moved = {name for name, value in before.named_parameters() if not torch.equal(value, after.get_parameter(name))}
    if train_mode == "heads":
        assert not moved
        # With a frozen backbone, the best checkpoint is chosen by the heads' loss.
        state = json.loads((folder / "trainer_state.json").read_text())
        evaluations = [entry for entry in state["log_history"] if "eval_loss" in entry]
        assert all(0 <= entry["eval_head_2_acceptance"] <= 1 for entry in evaluations)
        losses = {entry["step"]: entry["eval_heads_loss"] for entry in evaluations}
        assert state["best_global_step"] == min(losses, key=losses.get) and len(set(losses.values())) == 2
    else:
        layers = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
        assert {name.split(".")[-2] for name in moved} == set(layers)
        assert all(name.endswith(".weight") for name in moved)
        assert (folder / "adapter" / "adapter_model.safetensors").exists()
    # Biases start at zero.
    assert len(after.ngram_heads) == 2 and all(head.fc_out.bias.any() for head in after.ngram_heads)
    # The saved model is the evaluated one: merged, with heads.
    translate = Translator(AutoTokenizer.from_pretrained(folder), 2, 1.0, 256, 64, shows_progress=False)
    rows = translations_of(folder)
    assert translate(after, [row["source"] for row in rows], 0.0) == [row["plain"] for row in rows]


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_other_plain_checkpoints(plain_checkpoints, pairs, tmp_path, name):
    """T5 gets a prefix before every source in training, evaluation and translation."""
    folder, prefix = tmp_path / "run", "translate : " if name == "t5" else ""
    options = [*pairs, *QUICK, "--max_steps", "20", "--eval_steps", "20", "--learning_rate", "1e-2"]
    options += ["--source_prefix", prefix, "--ngram_size", "3"]
    (result,) = run("--model_name_or_path", plain_checkpoints[name], *options, "--output_dir", str(folder))
    losses = [entry for entry in result.history if "next_word_loss" in entry]
    for loss in ("next_word_loss", "head_1_loss", "head_2_loss"):
        assert losses[-1][loss] < losses[0][loss] - 0.5
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert model.config.model_type == f"wdr_ngram_{name}" and model.ngram_ensemble() == result.ensemble
    tokenizer = AutoTokenizer.from_pretrained(folder)
    longest = 64 if name == "bart" else None
    translator = Translator(tokenizer, 2, 1.0, 256, longest, prefix, shows_progress=False)
    rows = translations_of(folder)
    sources = [row["source"] for row in rows]
    assert sources == [pair[0] for pair in toy_pairs(22, 2)]
    assert translator(model, sources, result.ensemble) == [row["hypothesis"] for row in rows]
    if name == "t5":
        # Evaluation uses the run's prefix on any pairs, unless another is given.
        evaluate = ["--do_train", "false", "--model_name_or_path", str(folder)]
        evaluate += as_arguments(num_beams=1, lambda_grid=0)
        nll = pytest.approx(result.scores["test"].nll_sums[0])
        for options in ([], pairs):
            assert run(*evaluate, *options)[0].scores["test"].nll_sums[0] == nll
        assert run(*evaluate, *pairs, "--source_prefix", "")[0].scores["test"].nll_sums[0] != nll
        arguments = parse_nmt_arguments([*pairs, "--source_prefix", prefix], "").data
        batches = tokenize_nmt(load_pairs(arguments, True, print), tokenizer, model, arguments, 0, print).batches
        begin = tokenizer(prefix.strip()).input_ids[:-1]
        assert all((batch["input_ids"][:, : len(begin)] == torch.tensor(begin)).all() for batch in batches["train"])


def test_bag_of_words_without_heads(marian, pairs, tmp_path):
    options = [*pairs, *QUICK, "--ngram_target", "none", "--bow_loss_weight", "1.0"]
    (result,) = run("--model_name_or_path", marian, *options, "--output_dir", str(tmp_path / "run"))
    model = WDRNgramMarianMTModel.from_pretrained(tmp_path / "run")
    assert result.name == "bow" and not model.ngram_heads and model.config.bow_loss_weight == 1.0
    # Without heads, only λ = 0 is evaluated.
    assert list(result.translations["validation"]) == [0.0] and result.ensemble == 0
    # The training loss includes the bag of words; the evaluation loss is the next token's.
    history = result.history
    assert all(entry["loss"] > entry["next_word_loss"] + 0.5 for entry in history if "loss" in entry)
    evaluations = [entry for entry in history if "eval_loss" in entry]
    next_word = pytest.approx([entry["eval_next_word_loss"] for entry in evaluations], rel=1e-5)
    assert [entry["eval_loss"] for entry in evaluations] == next_word
    rows = translations_of(tmp_path / "run")
    assert len(rows) == 22 and all(row["plain"] == row["hypothesis"] for row in rows)


@pytest.mark.plots
def test_compare(pairs, tmp_path, capsys):
    folder = tmp_path / "run"
    options = [*pairs, *QUICK, "--max_steps", "2", "--num_beams", "1"]
    results = run(*options, "--output_dir", str(folder), "--compare")
    assert [result.name for result in results] == ["wdr N=3", "plain", "bow", "simple N=3"]
    assert (folder / "comparison.png").exists() and (folder / "comparison_training.png").exists()
    folders = [folder, *(folder / name for name in ("plain", "bow", "simple"))]
    assert len({(path / "tokenizer.json").read_bytes() for path in folders}) == 1
    configs = [WDRNgramMarianMTModel.from_pretrained(path).config for path in folders]
    assert [(config.ngram_size, config.bow_loss_weight) for config in configs] == [(3, 0), (1, 0), (1, 1), (3, 0)]
    assert configs[0].ngram_target == "wdr" and configs[3].ngram_target == "simple"
    # They start from the same weights and train on the same batches.
    first = [next(entry for entry in result.history if "loss" in entry) for result in results]
    assert [entry["next_word_loss"] for entry in first] == [pytest.approx(first[0]["next_word_loss"])] * 4
    assert len({entry["loss"] for entry in first}) == 4
    table = capsys.readouterr().out.split("BLEU, with and without the heads (")[1].split("chrF, with")[0]
    assert all(re.search(rf"^{name} +test +22 ", table, flags=re.MULTILINE) for name in ("plain", "bow", "simple N=3"))


def test_killed_and_resumed(marian, pairs, tmp_path):
    """The final weights are those of an uninterrupted run, with dropout."""
    options = ["--model_name_or_path", marian, *pairs, *QUICK, "--ngram_size", "3", "--lambda_grid", "0", "0.4"]
    options += as_arguments(max_steps=40, eval_steps=10, learning_rate=1e-2)
    run(*options, "--output_dir", str(tmp_path / "complete"))
    broken = tmp_path / "broken"
    run_and_kill(run, broken, options)
    run(*options, "--output_dir", str(broken))
    complete = metrics_of(tmp_path / "complete")
    assert [entry["step"] for entry in metrics_of(broken)["history"] if "eval_loss" in entry] == [10, 20, 30, 40]
    assert metrics_of(broken)["splits"] == complete["splits"]
    weights = [load_file(folder / "model.safetensors") for folder in (tmp_path / "complete", broken)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert WDRNgramMarianMTModel.from_pretrained(broken).config.dropout == 0.1
    assert translations_of(broken) == translations_of(tmp_path / "complete")


def test_run_yaml_repeats_the_run(marian, pairs, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    run("--model_name_or_path", marian, *pairs, "--output_dir", str(one), *QUICK, "--learning_rate", "0.03")
    # Options that do not change the weights are not saved.
    search = ["--num_beams", "2", "--lambda_grid", "0", "0.4", "--disable_tqdm", "true"]
    run(str(one / "run.yaml"), "--output_dir", str(two), *search)
    assert (two / "run.yaml").read_text() == (one / "run.yaml").read_text()
    assert (two / "model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()
    assert translations_of(two) == translations_of(one)


def test_default_data(tmp_path, monkeypatch, capsys):
    """A few of the built-in pairs, a tokenizer trained on them, and the preset's model."""
    from ngram_wdr_hf.data.english_german import english_german

    monkeypatch.setattr(
        ngram_wdr_hf.training.nmt.data,
        "english_german",
        lambda: english_german({"train": 100, "validation": 6, "test": 5}),
    )
    monkeypatch.chdir(tmp_path)
    short = as_arguments(max_steps=2, eval_strategy="no", vocab_size=600, lambda_grid="0 0.4", num_beams=1)
    (result,) = run(*short, "--num_workers", "1", "--disable_tqdm", "true")
    assert result.name == "wdr N=3" and result.settings["preset"] == "tiny" and len(result.translated) == 5
    printed = capsys.readouterr().out
    assert "BLEU, with and without the heads (" in printed and "Saved in runs/nmt: " in printed
    assert RunFolder("runs/nmt").is_trained() and len(AutoTokenizer.from_pretrained("runs/nmt")) == 600
