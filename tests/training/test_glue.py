"""`ngram-wdr glue`, from its arguments to what it leaves."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.glue import (
    GLUE_TASKS,
    GlueOptions,
    encode,
    joined,
    load_classifier,
    padding_collator,
    read_examples,
)
from tests.support import scripts
from tests.support.errors import raises_naming
from tests.support.glue_files import NEUTRAL_WORDS, tiny_checkpoint, tokenizer_for
from tests.support.processes import in_two_processes
from tests.support.scripts import QUICK, as_arguments, contents, run_in_one_of_two, weights_of

run = partial(scripts.run, "glue")

SST2, RTE = GLUE_TASKS["sst2"], GLUE_TASKS["rte"]


@pytest.fixture
def command(commands, tmp_path) -> list[str]:
    return [*commands["glue"], "--output_dir", str(tmp_path / "run")]


@pytest.mark.parametrize("kind", ["gpt2", "plain gpt2", "bart", "t5", "bert", "modernbert"])
@torch.no_grad()
def test_padding_changes_nothing(kind, tmp_path):
    """The last token is classified, even if it is the end token. Model and tokenizer are complete when saved."""
    tiny_checkpoint(kind, tmp_path)
    model, tokenizer = load_classifier(str(tmp_path), SST2)
    model.eval()
    end = "" if model.config.is_encoder_decoder or tokenizer.bos_token is None else f" {tokenizer.bos_token}"
    texts = ["film", f"dull plot{end}", f"often{end} moving scene film film", "bleak"]
    rows = encode([([text], 0) for text in texts], model, tokenizer)
    assert len(rows[1]["input_ids"]) > len(rows[0]["input_ids"])
    alone = [torch.tensor([row["input_ids"]]) for row in rows]
    expected, batch = (
        torch.cat([model(input_ids=ids).logits for ids in alone]),
        padding_collator(model, tokenizer)(rows),
    )
    torch.testing.assert_close(model(**batch).logits, expected)
    if "gpt2" in kind:
        states = torch.cat([model.transformer(ids).last_hidden_state[:, -1] for ids in alone])
        torch.testing.assert_close(expected, states @ model.score.weight.T)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "classifier")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier")
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    assert again.config.id2label == {0: "negative", 1: "positive"}
    saved = AutoTokenizer.from_pretrained(tmp_path / "classifier")
    assert torch.equal(saved(texts, padding=True, return_tensors="pt")["input_ids"], batch["input_ids"])


@pytest.mark.parametrize(
    ("kind", "pair"),
    [("gpt2", "A <eos> B"), ("bart", "A <eos> B <eos>"), ("bert", "[CLS] A [SEP] B [SEP]")],
)
def test_pairs_are_joined_and_truncated(kind, pair, tmp_path):
    tokenizer, long = tokenizer_for(kind), " ".join(NEUTRAL_WORDS * 4)
    tiny_checkpoint(kind, tmp_path)
    model, loaded = load_classifier(str(tmp_path), RTE)
    pairs = [(["often moving plot scene", "film"], 0), ([long, "dull"], 0), (["dull", long], 1)]
    room = 12 - len(pair.replace("A", "").replace("B", "").split())
    for (sentences, _), row in zip(pairs, encode(pairs, model, loaded, max_length=12), strict=True):
        parts = [tokenizer.tokenize(text) for text in sentences]
        # The longer text is truncated.
        shorter = min(map(len, parts))
        parts = [part[: max(shorter, room - shorter)] if sum(map(len, parts)) > room else part for part in parts]
        tokens = pair.replace("A", " ".join(parts[0])).replace("B", " ".join(parts[1]))
        assert loaded.convert_ids_to_tokens(row["input_ids"]) == tokens.split()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_token_type_ids_only_for_models_with_token_types(kind, tmp_path):
    """GPT-2 would look them up as token ids."""
    tokenizer = tokenizer_for("bert")
    tiny_checkpoint(kind, tmp_path, vocab_size=len(tokenizer))
    tokenizer.save_pretrained(tmp_path)
    (row,) = encode([(["dull film", "bleak plot often"], 0)], *load_classifier(str(tmp_path), RTE))
    assert row.get("token_type_ids") == ([0, 0, 0, 0, 1, 1, 1, 1] if kind == "bert" else None)


def test_reformer_attention_is_bidirectional(tmp_path):
    tiny_checkpoint("reformer", tmp_path, max_position_embeddings=24)
    model, tokenizer = load_classifier(str(tmp_path), SST2)
    rows = encode([(["film plot dull scene often film plot"], 0), (["dull"], 1)], model, tokenizer)
    batch = padding_collator(model, tokenizer)(rows)
    embedded = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    model.train()(inputs_embeds=embedded, attention_mask=batch["attention_mask"]).logits[0].sum().backward()
    # All seven tokens affect the output; padding does not.
    reached = embedded.grad[0].abs().sum(-1) > 1e-7
    assert reached[:7].all() and not reached[7:].any()


@torch.no_grad()
def slow_score(folder: Path, glue: str, name: str) -> float:
    """Predict one example at a time, without padding, with the saved model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    examples = read_examples(GlueOptions(task=[name], data_dir=glue), name)["validation"]
    inputs = [tokenizer(*joined(texts, tokenizer), return_tensors="pt") for texts, _ in examples]
    guesses, truths = [int(model(**row).logits.argmax()) for row in inputs], [truth for _, truth in examples]
    if name == "cola":
        return float(np.nan_to_num(np.corrcoef(guesses, truths)[0, 1])) if len({*guesses}) > 1 else 0.0
    return float(np.mean(np.array(guesses) == np.array(truths)))


def test_three_tasks_with_two_seeds(gpt2, glue, tmp_path, capsys):
    command = ["--model_name_or_path", gpt2, "--data_dir", glue, *QUICK["glue"], "--per_device_eval_batch_size", "4"]
    three, folder = [*command, "--task", "sst2", "cola", "rte", "--seeds", "1", "2", "--output_dir"], tmp_path / "run"
    results = run(*three, folder)
    printed, metrics = capsys.readouterr().out, json.loads((folder / "glue_metrics.json").read_text())
    assert metrics == {"model": gpt2, "tasks": dict(zip(("sst2", "cola", "rte"), results, strict=True))}
    for name, result in metrics["tasks"].items():
        by_seed = np.array([result["by_seed"][seed] for seed in ("1", "2")])
        assert by_seed.shape == (2, 2) and (result["num_train"], result["num_validation"]) == (49, 11)
        last = by_seed[:, -1]
        assert result["last_epoch"] == pytest.approx({"mean": last.mean(), "std": last.std(ddof=1)})
        assert f" {100 * last.mean():.1f} ± {100 * last.std(ddof=1):.1f} " in printed
        # The last batch has three examples; the saved model is that of the last epoch.
        for seed, score in zip(("1", "2"), last, strict=True):
            assert slow_score(folder / name / f"seed-{seed}", glue, name) == pytest.approx(score)
    assert [result["majority_class"] for result in results[:2]] == [5 / 11, 0.0]
    # A repeated command changes nothing. A result depends on the seed, not on earlier runs.
    before = contents(folder)
    assert run(*three, folder) == results and before.items() <= contents(folder).items()
    run(*command, "--task", "sst2", "--seed", "2", "--output_dir", tmp_path / "alone")
    folders = tmp_path / "alone" / "sst2" / "seed-2", folder / "sst2" / "seed-2", folder / "sst2" / "seed-1"
    weights = [weights_of(path) for path in folders]
    assert weights[0] == weights[1] != weights[2]


def test_scores_improve(command):
    (result,) = run(*command, "--num_train_epochs", "8", "--seed", "3")
    assert result["last_epoch"]["mean"] >= 0.8 and result["last_epoch"]["std"] is None


def test_load_best_model_at_end(command, glue, tmp_path):
    """With this high learning rate, the last epoch is not the best."""
    options = ["--learning_rate", "0.03", "--lr_scheduler_type", "constant", "--load_best_model_at_end", "true"]
    (result,) = run(*command, *options, "--num_train_epochs", "3", "--seed", "1")
    scores = result["by_seed"]["1"]
    assert max(scores) > result["last_epoch"]["mean"] == scores[-1]
    assert slow_score(tmp_path / "run" / "sst2" / "seed-1", glue, "sst2") == pytest.approx(max(scores))


def test_gradient_accumulation_is_exact(glue, tmp_path):
    """Stock Trainer would add up the means of the micro-batches."""
    # Without dropout, which depends on the batch size.
    tiny_checkpoint("gpt2", tmp_path / "model", resid_pdrop=0.0)
    options = ["--model_name_or_path", tmp_path / "model", "--task", "rte", "--data_dir", glue, *QUICK["glue"]]
    options += as_arguments(optim="sgd", learning_rate=1, warmup_steps=0, max_steps=2, max_grad_norm=0)
    weights = []
    for size, pieces in ((8, 1), (2, 4)):
        sizes = as_arguments(per_device_train_batch_size=size, gradient_accumulation_steps=pieces)
        run(*options, "--train_sampling_strategy", "sequential", "--output_dir", tmp_path / str(size), *sizes)
        weights.append(load_file(tmp_path / str(size) / "rte" / "seed-42" / "model.safetensors"))
    torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-5)


def test_two_processes(command, glue, tmp_path):
    """Eleven examples in batches of two per process: the examples that pad the last batch must not count twice."""
    # By length, each process would group in its own order.
    options = ["--per_device_eval_batch_size", "2", "--train_sampling_strategy", "group_by_length"]
    in_two_processes(run_in_one_of_two, tmp_path, "glue", [*command, *options])
    metrics = json.loads((tmp_path / "run" / "glue_metrics.json").read_text())
    score = slow_score(tmp_path / "run" / "sst2" / "seed-42", glue, "sst2")
    assert metrics["tasks"]["sst2"]["last_epoch"]["mean"] == pytest.approx(score)
    assert "group_by_length" not in (tmp_path / "run" / "sst2" / "seed-42" / "run.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "text", "examples"),
    [
        # Quotes and NA have no special meaning; spaces around a sentence are stripped.
        ("sst2", '\ufefflabel\tsentence\n1\t"NA\n0\t say "it" \n\n', [(['"NA'], 1), (['say "it"'], 0)]),
        ("cola", 'gj04\t0\t*\t"A\r\ngj04\t1\t\tB "b"\r\n', [(['"A'], 0), (['B "b"'], 1)]),
    ],
)
def test_file_format(name, text, examples, tmp_path):
    folder = tmp_path / GLUE_TASKS[name].title
    folder.mkdir()
    for file in ("train.tsv", "dev.tsv"):
        (folder / file).write_bytes(text.encode())
    found = read_examples(GlueOptions(task=[name], data_dir=str(tmp_path)), name)
    assert found == {"train": examples, "validation": examples}


def test_dataset(glue, tmp_path):
    """It gives the same examples as the files."""
    task, expected = GLUE_TASKS["rte"], read_examples(GlueOptions(task=["rte"], data_dir=glue), "rte")
    labels = {"label": ClassLabel(names=list(task.labels))}
    features = Features({**dict.fromkeys(task.sentences, Value("string")), **labels})
    lines = ["---", "configs:", "- config_name: rte", "  data_files:"]
    for split, examples in expected.items():
        rows = [dict(zip(features, (*sentences, label), strict=True)) for sentences, label in examples]
        Dataset.from_list(rows, features).to_parquet(tmp_path / f"{split}.parquet")
        lines += [f"  - split: {split}", f"    path: {split}.parquet"]
    (tmp_path / "README.md").write_text("\n".join([*lines, "---", ""]))
    assert read_examples(GlueOptions(task=["rte"], dataset_name=str(tmp_path)), "rte") == expected


def test_weights_that_are_missing(command, gpt2, tmp_path):
    folder, name = shutil.copytree(gpt2, tmp_path / "model"), "transformer.h.1.mlp.c_fc.weight"
    # Cloned: the file is memory-mapped.
    weights = {key: value.clone() for key, value in load_file(folder / "model.safetensors").items()}
    save_file({**weights, name: torch.zeros(3, 4)}, folder / "model.safetensors")
    with raises_naming(InputError, f"`{name}`"):
        run(*command, "--model_name_or_path", folder)
