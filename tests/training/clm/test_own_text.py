"""Heads of a frozen model: trained on text that it writes itself, with its hidden states kept on disk."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Trainer, TrainingArguments

from ngram_wdr_hf import WDRNgramGPT2LMHeadModel, with_ngram_heads
from ngram_wdr_hf.analysis.trained_run import load_run, load_text
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.rows import RowStore, TrainingRows, pad_batch
from ngram_wdr_hf.training.clm import own_text
from ngram_wdr_hf.training.clm.cached_rows import CachedRows
from ngram_wdr_hf.training.clm.own_text import encode_prompts, write_own_text
from ngram_wdr_hf.training.common.self_generated import SelfGeneration
from tests.support.clm_runs import QUICK, run
from tests.support.errors import raises_naming
from tests.support.scripts import as_arguments, metrics_of
from tests.support.tiny import plain_model
from tests.support.training import ONE_STEP

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] + ' .' }}{% endfor %}{% if add_generation_prompt %} today{% endif %}"
)


@pytest.fixture(scope="module")
def model(checkpoint):
    return with_ngram_heads(checkpoint, ngram_size=3)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint)


def options(num_tokens: int, **fields) -> SelfGeneration:
    fields = {"max_length": 12, "temperature": 0.7, "batch_size": 4, "seed": 3, **fields}
    return SelfGeneration(amount=num_tokens, **fields)


def test_prompts(tokenizer):
    start = tokenizer.bos_token_id
    assert encode_prompts([], tokenizer) == [[start]]
    the, cat = tokenizer("the cat").input_ids
    assert encode_prompts(["the cat"], tokenizer) == [[start, the, cat]]
    tokenizer.chat_template = TEMPLATE
    try:
        stop, today = tokenizer(". today").input_ids
        assert encode_prompts(["the cat", "the"], tokenizer) == [[the, cat, stop, today], [the, stop, today]]
    finally:
        tokenizer.chat_template = None


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rows_continue_their_prompts(model, tmp_path, temperature):
    """Prompts of different lengths, cut to half of a row; in turn, in one batch after the other."""
    prompts = [[2], [3, 4, 5], list(range(2, 12))]
    rows = write_own_text(model, prompts, options(90, temperature=temperature), tmp_path, False).rows
    assert sum(map(len, rows)) >= 90 > sum(map(len, rows[:-4])) and len(rows) % 4 == 0
    for i, row in enumerate(rows):
        prompt = prompts[i % 3][-6:]
        assert row[: len(prompt)].tolist() == prompt and len(prompt) < len(row) <= 12
    # Greedy rows are what the model says alone.
    if temperature == 0:
        for row, prompt in zip(rows[:3], prompts, strict=True):
            ids = torch.tensor([prompt[-6:]])
            alone = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)[0]
            assert row.tolist() == alone.tolist()[: len(row)]


def test_interrupted_writer_continues(model, tmp_path, monkeypatch):
    """It ends with the rows of an uninterrupted one, and leaves the random numbers alone."""
    whole = write_own_text(model, [[2], [3, 4]], options(150), tmp_path / "whole", False)
    write, calls = own_text._continue, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr(own_text, "_continue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_own_text(model, [[2], [3, 4]], options(150), tmp_path / "parts", False)
    state = torch.get_rng_state()
    parts = write_own_text(model, [[2], [3, 4]], options(150), tmp_path / "parts", False)
    assert torch.equal(torch.get_rng_state(), state)
    assert [row.tolist() for row in parts.rows] == [row.tolist() for row in whole.rows] and len(calls) > 3
    # Repeated, nothing is written; for more tokens, the text is continued.
    before = len(calls)
    write_own_text(model, [[2], [3, 4]], options(150), tmp_path / "parts", False)
    assert len(calls) == before
    more = write_own_text(model, [[2], [3, 4]], options(250), tmp_path / "parts", False)
    assert len(more.rows) > len(whole.rows)
    # For fewer, only the first of them count.
    fewer = write_own_text(model, [[2], [3, 4]], options(150), tmp_path / "parts", False)
    assert [row.tolist() for row in fewer.rows] == [row.tolist() for row in whole.rows]
    with raises_naming(InputError, "`temperature` 0.7", str(tmp_path / "parts")):
        write_own_text(model, [[2]], options(150, temperature=1.0), tmp_path / "parts", False)
    with raises_naming(InputError, "other inputs", str(tmp_path / "parts")):
        write_own_text(model, [[2]], options(150, inputs="0123"), tmp_path / "parts", False)


def rows_of(count: int) -> TrainingRows:
    chance = np.random.default_rng(0)
    return TrainingRows([chance.integers(2, 12, chance.integers(5, 12)).astype(np.int32) for _ in range(count)])


def test_cached_states_are_those_of_the_model(model, tmp_path):
    rows = rows_of(7)
    cached = CachedRows(rows, tmp_path / "cache", model.get_output_embeddings().weight.shape[1])
    cached.fill(model, batch_size=3, shows_progress=False)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.bin")) == cached.num_bytes
    for i in range(7):
        ids = rows[i]["input_ids"]
        with torch.no_grad():
            output = model.eval()(ids[None], return_last_hidden_state=True)
        item = cached[i]
        assert torch.equal(item["input_ids"], ids)
        torch.testing.assert_close(
            item["last_hidden_state"].float(), output.last_hidden_state[0], atol=2e-3, rtol=2e-3
        )
        assert torch.equal(item["shift_labels"], output.logits[0].argmax(-1))


def test_loss_from_cached_states(model, tmp_path):
    """Loss and gradients of the heads are those of the model that reads the tokens, without running it."""
    rows = rows_of(4)
    cached = CachedRows(rows, tmp_path, model.get_output_embeddings().weight.shape[1])
    cached.fill(model, batch_size=2, shows_progress=False)
    batch = pad_batch([cached[i] for i in range(4)])
    model.requires_grad_(False)
    model.ngram_heads.requires_grad_(True)
    gradients = []
    for inputs in (batch, {name: tensor for name, tensor in batch.items() if name != "last_hidden_state"}):
        model.zero_grad(set_to_none=True)
        # Without the model's dropout, which the cache does not have.
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(torch.nn.Dropout, "forward", lambda self, hidden: hidden)
            monkeypatch.setattr(torch.nn.functional, "dropout", lambda hidden, *args, **kwargs: hidden)
            model.train()(**inputs).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.ngram_heads.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-2)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            type(model.transformer), "forward", lambda *args, **kwargs: pytest.fail("ran the backbone")
        )
        model.train()(**batch).loss.backward()


def test_accumulation_with_cached_states_is_exact(model, tmp_path):
    """Rows of different lengths count by their targets, in one batch and in several."""
    rows = rows_of(4)
    cached = CachedRows(rows, tmp_path, model.get_output_embeddings().weight.shape[1])
    cached.fill(model, batch_size=2, shows_progress=False)
    model.requires_grad_(False)
    model.ngram_heads.requires_grad_(True)
    weights = []
    for batch_size in (4, 1):
        copied = copy.deepcopy(model)
        arguments = TrainingArguments(
            tmp_path / "run",
            **{**ONE_STEP, "per_device_train_batch_size": batch_size, "gradient_accumulation_steps": 4 // batch_size},
            remove_unused_columns=False,
        )
        Trainer(copied, arguments, train_dataset=cached, data_collator=pad_batch).train()
        weights.append([parameter.detach() for parameter in copied.ngram_heads.parameters()])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other)


def test_interrupted_cache_is_continued(model, tmp_path, monkeypatch):
    rows, width = rows_of(9), model.get_output_embeddings().weight.shape[1]
    whole = CachedRows(rows, tmp_path / "whole", width)
    whole.fill(model, 3, False)
    predict, calls = WDRNgramGPT2LMHeadModel.ngram_predictions, []

    def interrupted(self, **inputs):
        calls.append(inputs)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return predict(self, **inputs)

    monkeypatch.setattr(type(model), "ngram_predictions", interrupted)
    parts = CachedRows(rows, tmp_path / "parts", width)
    with pytest.raises(KeyboardInterrupt):
        parts.fill(model, 3, False)
    parts.fill(model, 3, False)
    assert len(calls) == 4
    for name in ("states.bin", "greedy.bin"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_cache_without_space(tmp_path, monkeypatch):
    cached = CachedRows(rows_of(5), tmp_path / "cache", 10**6)
    with raises_naming(InputError, "`--cache_hidden_states`", "`--cache_limit`"):
        cached.check_space(limit=0.01)
    cached.check_space(limit=1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1000))
    with raises_naming(InputError, "`--cache_hidden_states`", str(tmp_path)):
        cached.check_space(limit=1)
    assert not (tmp_path / "cache").exists()


SELF = as_arguments(train_mode="heads", self_generated=400, self_generated_batch_size=8, ngram_size=3, lambda_grid=0)


@pytest.mark.parametrize("cache", [(), ("--cache_hidden_states",)])
def test_run_on_own_text(checkpoint, files, tmp_path, capsys, cache):
    """Only the heads change; acceptance is in the log, the metrics and the printed lines."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat\n\nmy fish sees\n", encoding="utf-8")
    folder = tmp_path / "run"
    command = ["--model_name_or_path", checkpoint, *SELF, *QUICK, "--prompt_file", str(prompts), *cache]
    (result,) = run(*command, "--output_dir", str(folder))
    printed = capsys.readouterr().out
    assert "tokens of its own text" in printed and " accepted 0." in printed
    rows = RowStore(folder / "self_generated").rows
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert {tokenizer.decode(row[1:3]) for row in rows} == {"the cat", "my fish"}
    assert sum(map(len, rows)) >= 400
    trained, before = load_file(folder / "model.safetensors"), load_file(Path(checkpoint) / "model.safetensors")
    assert all(torch.equal(trained[name], weight) for name, weight in before.items())
    evaluations = [entry for entry in metrics_of(folder)["history"] if "eval_head_1_acceptance" in entry]
    assert len(evaluations) == 2 and all(0 <= entry["eval_head_2_acceptance"] <= 1 for entry in evaluations)
    assert (folder / "hidden_states" / "states.bin").exists() == bool(cache)
    # The tokens of the text that cover 98 % of it are drafted.
    own = np.concatenate(rows[: -max(1, round(len(rows) * 0.05))])
    drafted = WDRNgramGPT2LMHeadModel.from_pretrained(folder).draft_token_ids.numpy()
    assert np.isin(own, drafted).mean() >= 0.98 > np.isin(own, drafted[:-1]).mean()
    # The run can be evaluated later, on the same held-out rows, even if an earlier command wrote more.
    RowStore(folder / "self_generated").append(rows[:5])
    (again,) = run("--do_train", "false", "--model_name_or_path", str(folder), "--sample_tokens", "0")
    assert again.scores["validation"].nll(0.0) == pytest.approx(result.scores["validation"].nll(0.0))
    # So can it be analyzed; there is no other text.
    trained_run = load_run(folder)
    text = load_text(trained_run, "validation", max_tokens=10_000)
    num_held_out = max(1, round(len(rows) * 0.05))
    assert text.documents == [np.concatenate(rows[-num_held_out:]).tolist()]
    assert text.token_counts.sum() == len(own) and text.predicted is not None and text.prompts
    moved = shutil.move(folder / "self_generated", tmp_path / "moved")
    with raises_naming(InputError, str(folder / "self_generated"), "restore"):
        load_text(trained_run, "validation", max_tokens=10_000)
    shutil.move(moved, folder / "self_generated")
    # Repeated, nothing is written or trained.
    state = json.loads((folder / "trainer_state.json").read_text())
    run(*command, "--output_dir", str(folder))
    assert json.loads((folder / "trainer_state.json").read_text()) == state


def test_own_text_gives_no_ensemble(checkpoint, tmp_path):
    """The best weights would undo the temperature of the text, and change what the model says."""
    options = ["--model_name_or_path", checkpoint, *SELF[:-2], *QUICK, "--sample_tokens", "0"]
    (result,) = run(*options, "--output_dir", str(tmp_path / "run"))
    config = WDRNgramGPT2LMHeadModel.from_pretrained(tmp_path / "run").config
    assert result.fit is None and config.ensemble_weights is None and config.ensemble_lambda == 0
    (result,) = run(*options, "--ensemble", "fitted", "--output_dir", str(tmp_path / "fitted"))
    assert result.fit is not None


def test_heads_for_drafts_are_chosen_by_accepted_drafts(checkpoint, tmp_path):
    """Neither their evaluations nor the result have an ensemble."""
    folder = tmp_path / "run"
    options = ["--model_name_or_path", checkpoint, *SELF, *QUICK, "--cache_hidden_states", "--eval_steps", "2"]
    run(*options, "--head_loss_tokens", "draft", "--eval_strategy", "steps", "--output_dir", str(folder))
    state = json.loads((folder / "trainer_state.json").read_text())
    evaluations = [entry for entry in state["log_history"] if "eval_loss" in entry]
    for entry in evaluations:
        first, second = (entry[f"eval_head_{n}_acceptance"] for n in (1, 2))
        assert entry["eval_accepted_drafts"] == pytest.approx(first + first * second)
        assert "eval_fitted_perplexity" not in entry
    assert len(evaluations) > 1
    assert state["best_metric"] == max(entry["eval_accepted_drafts"] for entry in evaluations)
    config = WDRNgramGPT2LMHeadModel.from_pretrained(folder).config
    assert config.ensemble_weights is None and config.ensemble_lambda == 0


def test_mix_of_own_and_real_text(checkpoint, files, tmp_path, capsys):
    command = ["--model_name_or_path", checkpoint, *SELF, *QUICK, *files, "--sample_tokens", "0"]
    (result,) = run(*command, "--output_dir", str(tmp_path))
    assert "tokens and" in capsys.readouterr().out
    # The validation text is the given one.
    assert result.scores.keys() == {"validation", "test"}
    assert result.scores["validation"].num_words == result.scores["validation"].num_tokens


BAD = {
    "new model": (["--self_generated", "100"], "`--self_generated`"),
    "prompts alone": (["--prompt_file", "prompts.txt"], "`--prompt_file`"),
    "no prompts": (
        ["--self_generated", "100", "--prompt_file", "none.txt", "--model_name_or_path", "CHECKPOINT"],
        "none.txt",
    ),
    "temperature alone": (["--self_generated_temperature", "0"], "`--self_generated_temperature`"),
    "cache of a model that changes": (["--cache_hidden_states"], "`--cache_hidden_states`"),
    "cache of a stream": (
        ["--cache_hidden_states", "--streaming", "--train_mode", "heads", "--model_name_or_path", "CHECKPOINT"],
        "`--streaming`",
    ),
    "FSDP": ([*SELF, "--model_name_or_path", "CHECKPOINT", "--fsdp", "full_shard"], "`--self_generated`"),
    "no room": (
        [*SELF, "--model_name_or_path", "CHECKPOINT", "--cache_hidden_states", "--cache_limit", "1e-9"],
        "`--cache_limit`",
    ),
}


@pytest.mark.parametrize(("bad", "named"), BAD.values(), ids=BAD)
def test_bad_input(checkpoint, tmp_path, bad, named):
    bad = [checkpoint if value == "CHECKPOINT" else value for value in bad]
    with raises_naming(InputError, named):
        run(*QUICK, *bad, "--output_dir", str(tmp_path / "run"))


def test_models_that_cannot_write_for_their_heads(tokenizer, tmp_path):
    plain_model(n_positions=3, vocab_size=len(tokenizer)).save_pretrained(tmp_path / "short")
    tokenizer.save_pretrained(tmp_path / "short")
    plain_model(vocab_size=len(tokenizer) - 1).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    plain_model().save_pretrained(tmp_path / "without")
    for name, named in {
        "short": ["3 tokens", "`--ngram_size`"],
        "other": [f"{len(tokenizer)} tokens", "trained with"],
        "without": ["without", "no tokenizer"],
    }.items():
        with raises_naming(InputError, *named):
            run(*QUICK, *SELF, "--model_name_or_path", str(tmp_path / name), "--output_dir", str(tmp_path / "run"))
