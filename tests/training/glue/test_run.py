"""`finetune_glue.py`, from its arguments to what it leaves."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    TrainerState,
    TrainingArguments,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.glue import GLUE_TASKS, GlueExamples, load_glue_dataset, read_glue_file
from ngram_wdr_hf.training.glue.data import encode, padding_collator
from ngram_wdr_hf.training.glue.model import load_classifier
from ngram_wdr_hf.training.glue.report import EpochLines, GlueResult
from tests.support.errors import raises_naming
from tests.support.glue_runs import NEUTRAL_WORDS, QUICK, run, tiny_checkpoint, tokenizer_for, write_task
from tests.support.processes import in_two_processes
from tests.support.scripts import card_code, contents

KINDS = {
    "gpt2": "GPT2ForSequenceClassification",
    "plain gpt2": "GPT2ForSequenceClassification",
    "llama": "LlamaForSequenceClassification",
    "bart": "BartForSequenceClassification",
    "t5": "T5ForSequenceClassification",
    "bert": "BertForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
}
SST2, RTE = GLUE_TASKS["sst2"], GLUE_TASKS["rte"]
PAIRS = GlueExamples([["dull film", "often moving plot scene actor film film"], ["bleak plot often", "film"]], [0, 1])


@pytest.fixture(scope="module")
def glue(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("glue")
    for name in GLUE_TASKS:
        write_task(folder, name)
    return str(folder)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("gpt2")
    tiny_checkpoint("gpt2", folder)
    return str(folder)


def last_states(model: PreTrainedModel, trunk: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Return the hidden states of a model's last layer; `trunk` is the submodule to call."""
    inputs = {"input_ids": ids, "output_hidden_states": True}
    if model.config.is_encoder_decoder:
        return trunk(**inputs, decoder_input_ids=ids).decoder_hidden_states[-1]
    return trunk(**inputs).hidden_states[-1]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_trunk_arrives_and_the_heads_are_left_out(kind, tmp_path):
    language_model = tiny_checkpoint(kind, tmp_path / "model")
    model, tokenizer = load_classifier(str(tmp_path / "model"), RTE)
    model.eval()
    assert type(model).__name__ == KINDS[kind] and type(model).__module__.startswith("transformers.")
    assert not any("ngram" in name for name in model.state_dict())
    rows = encode(PAIRS, model, tokenizer)
    ids = torch.tensor([rows[0]["input_ids"]])
    expected = last_states(language_model, language_model, ids)
    assert torch.equal(last_states(model, model.base_model, ids), expected) and expected.std() > 0.1

    model.save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    config = json.loads((tmp_path / "classifier" / "config.json").read_text())
    assert config["model_type"] in CONFIG_MAPPING_NAMES and "auto_map" not in config
    assert not {"ngram_size", "ensemble_lambda", "wdr_compose", "bow_loss_weight"} & config.keys()
    assert config["id2label"] == {"0": "entailment", "1": "not_entailment"}
    batch = padding_collator(model, tokenizer)(rows)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier")
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    # The tokenizer also has the changes.
    texts = AutoTokenizer.from_pretrained(tmp_path / "classifier")(*PAIRS.texts, padding=True, return_tensors="pt")
    assert torch.equal(texts["input_ids"], batch["input_ids"])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_changes_nothing(kind, tmp_path):
    tiny_checkpoint(kind, tmp_path)
    model, tokenizer = load_classifier(str(tmp_path), SST2)
    model.eval()
    end = "" if model.config.is_encoder_decoder or tokenizer.bos_token is None else f" {tokenizer.bos_token}"
    texts = ["film", f"dull plot{end}", f"often{end} moving scene film film", "bleak"]
    rows = encode(GlueExamples([texts], [0, 1, 1, 0]), model, tokenizer)
    assert len(rows[1]["input_ids"]) > len(rows[0]["input_ids"])
    batch = padding_collator(model, tokenizer)(rows)
    alone = [model(input_ids=torch.tensor([row["input_ids"]])) for row in rows]
    torch.testing.assert_close(model(**batch).logits, torch.cat([output.logits for output in alone]))
    if "gpt2" in kind:
        # The last token is classified, even if it is the end token.
        for row, output in zip(rows, alone, strict=True):
            states = model.transformer(torch.tensor([row["input_ids"]])).last_hidden_state
            torch.testing.assert_close(output.logits, states[:, -1] @ model.score.weight.T)


def test_pairs_are_joined_and_truncated(tmp_path):
    words = {kind: tokenizer_for(kind) for kind in ("gpt2", "bart", "bert")}
    expected = {"gpt2": "A <eos> B", "bart": "A <eos> B <eos>", "bert": "[CLS] A [SEP] B [SEP]"}
    texts = [[" ".join(NEUTRAL_WORDS * 4), "dull"], ["dull", " ".join(NEUTRAL_WORDS * 4)]]
    for kind, tokenizer in words.items():
        tiny_checkpoint(kind, tmp_path / kind)
        model, joined = load_classifier(str(tmp_path / kind), RTE)
        special = expected[kind].replace("A", "").replace("B", "").split()
        for texts_here in (PAIRS.texts, texts):
            rows = encode(GlueExamples(texts_here, [0, 1]), model, joined, max_length=12)
            for row, first, second in zip(rows, *texts_here, strict=True):
                parts = [tokenizer.tokenize(text) for text in (first, second)]
                # The longer text is truncated.
                room = 12 - len(special)
                shorter = min(len(part) for part in parts)
                parts = [
                    part[: max(shorter, room - shorter)] if sum(map(len, parts)) > room else part for part in parts
                ]
                tokens = expected[kind].replace("A", " ".join(parts[0])).replace("B", " ".join(parts[1]))
                assert joined.convert_ids_to_tokens(row["input_ids"]) == tokens.split()
        # A single text is unchanged.
        assert joined("dull film").input_ids == tokenizer("dull film").input_ids


def test_token_type_ids_only_for_models_with_token_types(tmp_path):
    """GPT-2 would look them up as token ids."""
    for kind, has_types in (("bert", True), ("modernbert", False), ("gpt2", False)):
        tokenizer = tokenizer_for("bert")
        tiny_checkpoint(kind, tmp_path / kind, vocab_size=len(tokenizer))
        tokenizer.save_pretrained(tmp_path / kind)
        row = encode(PAIRS, *load_classifier(str(tmp_path / kind), RTE))[0]
        assert row.pop("token_type_ids", None) == ([0, 0, 0, 0, 1, 1, 1, 1] if has_types else None)
        assert row.keys() == {"input_ids", "attention_mask", "labels"}


@pytest.mark.parametrize("axes", [None, [4, 6]])
def test_reformer_attention_is_bidirectional(tmp_path, transformers_log, axes):
    positions = (
        {} if axes is None else {"axial_pos_embds": True, "axial_pos_shape": axes, "axial_pos_embds_dim": [8, 8]}
    )
    tiny_checkpoint("reformer", tmp_path, max_position_embeddings=24, **positions)
    model, tokenizer = load_classifier(str(tmp_path), SST2)
    assert "reformer" in transformers_log.text and "bidirectional" in transformers_log.text
    rows = encode(GlueExamples([["film plot dull scene often film plot", "dull"]], [0, 1]), model, tokenizer)
    batch = padding_collator(model, tokenizer)(rows)
    assert batch["input_ids"].shape == (2, 8 if axes is None else 24)
    embeddings = model.get_input_embeddings()
    embedded = embeddings(batch["input_ids"]).detach().requires_grad_()
    model.train()(inputs_embeds=embedded, attention_mask=batch["attention_mask"]).logits[0].sum().backward()
    # All seven tokens affect the output; padding does not.
    reached = embedded.grad[0].abs().sum(-1) > 1e-7
    assert reached[:7].all() and not reached[7:].any()


@pytest.fixture(scope="module")
def finished_glue(gpt2, glue, tmp_path_factory) -> tuple[list[str], Path, list[GlueResult], str]:
    """Three tasks with two seeds each: the command, the folder, the results and what was printed."""
    folder = tmp_path_factory.mktemp("finished_glue") / "run"
    command = ["--model_name_or_path", gpt2, "--task", "SST-2", "CoLA", "rte", "--data_dir", glue, *QUICK]
    command += ["--seeds", "1", "2", "--per_device_eval_batch_size", "4", "--save_total_limit", "9", "--output_dir"]
    with redirect_stdout(io.StringIO()) as printed:
        results = run(*command, str(folder))
    return command, folder, results, printed.getvalue()


def test_runs_and_their_files(finished_glue, gpt2, glue):
    _, folder, results, printed = finished_glue
    assert [result.task.title for result in results] == ["SST-2", "CoLA", "RTE"]
    metrics = json.loads((folder / "glue_metrics.json").read_text())
    assert metrics["model"] == gpt2 and (folder / "glue.png").stat().st_size > 0
    for result in results:
        by_seed = np.array(list(result.scores.values()))
        assert list(result.scores) == [1, 2] and by_seed.shape == (2, 2)
        saved = metrics["tasks"][result.task.name]
        assert saved["by_seed"] == {"1": by_seed[0].tolist(), "2": by_seed[1].tolist()}
        last, best = by_seed[:, -1], by_seed.max(axis=1)
        assert saved["last_epoch"] == pytest.approx({"mean": last.mean(), "std": last.std(ddof=1)})
        assert saved["best_epoch"] == pytest.approx({"mean": best.mean(), "std": best.std(ddof=1)})
        cells = [f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f}" for values in (last, best)]
        metric = {"accuracy": "accuracy", "matthews_correlation": "Matthews correlation"}[result.task.metric]
        cells = [result.task.title, metric, "2", *cells, f"{100 * result.majority:.1f}"]
        assert re.search(" +".join(map(re.escape, cells)), printed)
        assert (saved["num_train"], saved["num_validation"]) == (49, 11)
        for seed in (1, 2):
            epochs = re.findall(rf"{result.task.title}, seed {seed}  epoch (\d) of 2  training loss", printed)
            assert epochs == ["1", "2"]
            # The last batch has three examples; the saved model is that of the last epoch.
            path = folder / result.task.name / f"seed-{seed}"
            assert slow_score(path, glue, result.task) == pytest.approx(result.scores[seed][-1])
    assert metrics["tasks"]["cola"]["majority_class"] == 0.0
    assert metrics["tasks"]["sst2"]["majority_class"] == 5 / 11


def test_model_card_code_classifies(finished_glue, capsys):
    for name in ("sst2", "rte"):
        exec(card_code(finished_glue[1] / name / "seed-1"), {})
        assert capsys.readouterr().out.strip() in GLUE_TASKS[name].labels


@pytest.mark.parametrize(("step", "epochs"), [(3, "0.429 of 1.43"), (7, "1 of 1.43"), (10, "1.43 of 1.43")])
def test_epochs_of_a_number_of_steps(capsys, step, epochs):
    """Ten steps of seven per epoch."""
    state = TrainerState(epoch=step / 7, global_step=step, max_steps=10, is_world_process_zero=True)
    logs = {"eval_accuracy": 0.5, "eval_loss": 1.0}
    EpochLines(SST2, 1).on_log(TrainingArguments(max_steps=10), state, None, logs)
    assert f"epoch {epochs} " in capsys.readouterr().out


def test_repeated_command_only_prints(finished_glue, capsys):
    command, folder, results, printed = finished_glue
    before = contents(folder)
    assert run(*command, str(folder)) == results
    printed_again = capsys.readouterr().out
    assert "epoch 1 of 2" not in printed_again
    assert printed_again.split("Validation, ")[1] == printed.split("Validation, ")[1]
    assert contents(folder) == before


@torch.no_grad()
def slow_score(folder: Path, glue: str, task) -> float:
    """Predict one example at a time, without padding, with the saved model."""
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    lines = (Path(glue) / task.title / "dev.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in (lines if task.columns else lines[1:])]
    guesses, truths = [], []
    for row in rows:
        texts = {"sst2": row[:1], "cola": row[3:], "rte": row[1:3]}[task.name]
        truth = row[1] if task.name == "cola" else row[-1]
        truths.append(task.labels.index(truth) if task.name == "rte" else int(truth))
        encoded = tokenizer(*[text.strip() for text in texts], return_tensors="pt")
        guesses.append(int(model(**encoded).logits.argmax()))
    if task.name == "cola":
        return float(np.nan_to_num(np.corrcoef(guesses, truths)[0, 1])) if len({*guesses}) > 1 else 0.0
    return float(np.mean(np.array(guesses) == np.array(truths)))


def test_a_checkpoint_that_has_changed(glue, tmp_path):
    """A finished run would print the scores of the old weights. Runs of older versions do not know theirs."""
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "run"
    command = ["--task", "sst2", "--data_dir", glue, *QUICK, "--max_steps", "1"]
    command += ["--model_name_or_path", str(checkpoint), "--output_dir", str(folder)]
    tiny_checkpoint("gpt2", checkpoint)
    results = run(*command)
    # The same weights, saved again.
    tiny_checkpoint("gpt2", checkpoint)
    assert run(*command) == results
    tiny_checkpoint("gpt2", checkpoint, initializer_range=0.5)
    with raises_naming(InputError, "`--output_dir ", f"`--model_name_or_path {checkpoint}` have changed"):
        run(*command)
    path = folder / "sst2" / "seed-42" / "run.yaml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "model_weights" not in line))
    assert run(*command) == results
    assert json.loads((folder / "glue_metrics.json").read_text())["model_weights"] is None


def test_scores_improve(gpt2, glue, tmp_path):
    options = ["--model_name_or_path", gpt2, "--task", "sst2", "--data_dir", glue, *QUICK, "--num_train_epochs", "8"]
    (result,) = run(*options, "--output_dir", str(tmp_path), "--seed", "3")
    assert result.last[0] >= 0.8


def test_results_depend_on_the_seed_only(finished_glue, gpt2, glue, tmp_path):
    """Results do not depend on earlier runs or file names."""
    files = ["--train_file", f"{glue}/SST-2/train.tsv", "--validation_file", f"{glue}/SST-2/dev.tsv"]
    run("--model_name_or_path", gpt2, "--task", "sst2", *files, *QUICK, "--seed", "2", "--output_dir", str(tmp_path))
    folders = (
        tmp_path / "sst2" / "seed-2",
        finished_glue[1] / "sst2" / "seed-2",
        finished_glue[1] / "sst2" / "seed-1",
    )
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("left", [1, 2], ids=["after an epoch", "before the model was saved"])
def test_resumed_run(finished_glue, tmp_path, left):
    command, folder, results, _ = finished_glue
    shutil.copytree(folder, tmp_path / "run")
    broken = tmp_path / "run" / "sst2" / "seed-1"
    for name in ("trainer_state.json", "model.safetensors", "config.json"):
        (broken / name).unlink()
    steps = sorted(int(path.name.split("-")[1]) for path in broken.glob("checkpoint-*"))
    assert steps == [7, 14]
    for step in steps[left:]:
        shutil.rmtree(broken / f"checkpoint-{step}")
    assert run(*command, str(tmp_path / "run")) == results
    weights = folder / "sst2" / "seed-1" / "model.safetensors"
    assert (broken / "model.safetensors").read_bytes() == weights.read_bytes()


def test_load_best_model_at_end(gpt2, glue, tmp_path):
    """With this high learning rate, the second epoch is the best."""
    options = ["--model_name_or_path", gpt2, "--task", "sst2", "--data_dir", glue, *QUICK, "--num_train_epochs", "3"]
    options += ["--learning_rate", "0.03", "--lr_scheduler_type", "constant", "--load_best_model_at_end", "true"]
    (result,) = run(*options, "--output_dir", str(tmp_path), "--seed", "1")
    (scores,) = result.scores.values()
    assert result.best[0] > result.last[0] == scores[-1]
    assert slow_score(tmp_path / "sst2" / "seed-1", glue, SST2) == pytest.approx(result.best[0])


def test_gradient_accumulation_is_exact(glue, tmp_path):
    """Stock Trainer would add up the means of the micro-batches."""
    # Without dropout, which depends on the batch size.
    tiny_checkpoint("gpt2", tmp_path / "model", resid_pdrop=0.0)
    options = ["--model_name_or_path", str(tmp_path / "model"), "--task", "rte", "--data_dir", glue, *QUICK]
    options += ["--optim", "sgd", "--learning_rate", "1", "--warmup_steps", "0"]
    options += ["--max_steps", "2", "--max_grad_norm", "0", "--train_sampling_strategy", "sequential"]
    weights = []
    for size, pieces in ((8, 1), (2, 4)):
        folder = tmp_path / str(size)
        sizes = ["--per_device_train_batch_size", str(size), "--gradient_accumulation_steps", str(pieces)]
        run(*options, "--output_dir", str(folder), *sizes)
        model = AutoModelForSequenceClassification.from_pretrained(folder / "rte" / "seed-42")
        weights.append(torch.cat([value.flatten() for value in model.state_dict().values()]))
    torch.testing.assert_close(weights[0], weights[1], atol=1e-5, rtol=1e-5)


def run_in_one_of_two(rank: int, folder: Path, arguments: list[str]) -> None:
    run(*arguments)


def test_two_processes(gpt2, glue, tmp_path):
    """Eleven examples in batches of two per process: the examples that pad the last batch must not count twice."""
    command = ["--model_name_or_path", gpt2, "--task", "sst2", "--data_dir", glue, *QUICK]
    command += ["--output_dir", str(tmp_path / "run"), "--per_device_eval_batch_size", "2"]
    in_two_processes(run_in_one_of_two, tmp_path, command)
    metrics = json.loads((tmp_path / "run" / "glue_metrics.json").read_text())
    score = slow_score(tmp_path / "run" / "sst2" / "seed-42", glue, SST2)
    assert metrics["tasks"]["sst2"]["last_epoch"]["mean"] == pytest.approx(score)


def test_file_format(tmp_path):
    """Quotes have no special meaning; spaces around a sentence are stripped."""
    path = tmp_path / "file.tsv"
    path.write_bytes('\ufefflabel\tsentence\n1\t"quoted\n0\t say "it" \n\n'.encode())
    examples = read_glue_file(path, SST2)
    assert (examples.texts, examples.labels) == ([['"quoted', 'say "it"']], [1, 0])
    path.write_text('gj04\t0\t*\t"A\r\ngj04\t1\t\tB "b"\r\n')
    examples = read_glue_file(path, GLUE_TASKS["cola"])
    assert (examples.texts, examples.labels) == ([['"A', 'B "b"']], [0, 1])
    path.write_text("index\tsentence1\tsentence2\tlabel\n7\tone\ttwo\tnot_entailment\n9\tthree\tfour\tentailment\n")
    examples = read_glue_file(path, RTE)
    assert (examples.texts, examples.labels) == ([["one", "three"], ["two", "four"]], [1, 0])


def test_datasets(gpt2, glue, tmp_path):
    """A dataset with one or several tasks gives the same examples as the files."""
    lines = []
    for name in ("sst2", "rte"):
        task = GLUE_TASKS[name]
        lines += [f"- config_name: {name}", "  data_files:"]
        label = ClassLabel(names=list(task.labels)) if name == "rte" else Value("int64")
        features = Features({**dict.fromkeys(task.sentences, Value("string")), "label": label})
        for split, file in (("train", "train"), ("validation", "dev")):
            examples = read_glue_file(f"{glue}/{task.title}/{file}.tsv", task)
            columns = {**dict(zip(task.sentences, examples.texts, strict=True)), "label": examples.labels}
            rows = Dataset.from_dict(columns, features)
            rows.to_parquet(tmp_path / "several" / f"{name}-{split}.parquet")
            rows.to_parquet(tmp_path / name / f"{split}.parquet")
            lines += [f"  - split: {split}", f"    path: {name}-{split}.parquet"]
    (tmp_path / "several" / "README.md").write_text("\n".join(["---", "configs:", *lines, "---", ""]))
    for name in ("sst2", "rte"):
        expected = read_glue_file(f"{glue}/{GLUE_TASKS[name].title}/dev.tsv", GLUE_TASKS[name])
        for folder in ("several", name):
            assert load_glue_dataset(str(tmp_path / folder), GLUE_TASKS[name])["validation"] == expected
    options = ["--model_name_or_path", gpt2, "--task", "sst2", *QUICK, "--max_steps", "1"]
    (result,) = run(*options, "--dataset_name", str(tmp_path / "several"), "--output_dir", str(tmp_path / "run"))
    assert (result.num_train, result.num_validation, result.majority) == (49, 11, 5 / 11)
