"""`ngram-wdr heads`: heads of a frozen model, trained on its own text, with its hidden states on disk."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.data.rows import RowStore, TrainingRows, pad_batch, total_length
from ngram_wdr_hf.training import clm, frozen_model_data, heads
from ngram_wdr_hf.training.frozen_model_data import CachedRows, encode_prompts, own_rows
from ngram_wdr_hf.training.options import RunTrainingArguments
from ngram_wdr_hf.training.run_folder import RunFolder
from tests.support.scripts import EVALUATE, QUICK, as_arguments, metrics_of, run, weights_of

PROMPTS = ["the cat", "my fish sees one bird today . a dog hears my fish", "today"]
HEADS = as_arguments(self_generated=400, self_generated_batch_size=8, ngram_size=3, self_generated_length=12)


@pytest.fixture
def model(checkpoint):
    return with_ngram_heads(checkpoint, ngram_size=3)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return AutoTokenizer.from_pretrained(checkpoint)


def training_of(folder: Path, **arguments) -> RunTrainingArguments:
    return RunTrainingArguments(str(folder), **{"seed": 3, "report_to": "none", "disable_tqdm": True, **arguments})


@pytest.fixture
def write(model, tokenizer, tmp_path):
    """A function that lets the model write text in a folder, and returns its rows."""
    (tmp_path / "prompts.txt").write_text("".join(f"{prompt}\n\n" for prompt in PROMPTS))

    def call(amount: int, **fields) -> list[list[int]]:
        fields = {"self_generated_length": 6, "self_generated_batch_size": 4, "test_file": ["given"], **fields}
        options = clm.ClmOptions(self_generated=amount, prompt_file=[str(tmp_path / "prompts.txt")], **fields)
        rows = own_rows(model, tokenizer, options, RunFolder(tmp_path), training_of(tmp_path))["train"]
        return [row.tolist() for row in rows]

    return call


def test_prompts(tokenizer, monkeypatch):
    start = tokenizer.bos_token_id
    assert encode_prompts([], tokenizer) == [[start]]
    the, cat, stop, today = tokenizer("the cat . today").input_ids
    assert encode_prompts(["the cat"], tokenizer) == [[start, the, cat]]
    template = "{{ messages[0]['content'] + ' .' }}{% if add_generation_prompt %} today{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    assert encode_prompts(["the cat", "the"], tokenizer) == [[the, cat, stop, today], [the, stop, today]]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rows_continue_their_prompts(write, model, tokenizer, temperature):
    """In turn, in one batch after the other. Long prompts are cut."""
    rows = write(90, self_generated_temperature=temperature)
    # Four rows are written at the same time, six tokens each.
    assert sum(map(len, rows)) >= 90 > sum(map(len, rows[:-4])) and len(rows) % 4 == 0
    prompts = [prompt[-10:] for prompt in encode_prompts(PROMPTS, tokenizer)]
    for i, row in enumerate(rows):
        prompt = prompts[i % 3]
        assert row[: len(prompt)] == prompt and len(prompt) < len(row) <= len(prompt) + 6
        # Greedy rows are what the model says alone.
        if temperature == 0:
            alone = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=6)[0]
            assert row == alone.tolist()[: len(row)]


def test_more_rows_continue_the_text(write):
    """Of more rows than needed, only the first count. The writer leaves the random numbers alone."""
    state, rows = torch.get_rng_state(), write(150)
    assert write(250)[: len(rows)] == rows == write(150) and torch.equal(torch.get_rng_state(), state)


def rows_of(count: int) -> TrainingRows:
    chance = np.random.default_rng(0)
    return TrainingRows([chance.integers(2, 12, chance.integers(5, 12)).astype(np.int32) for _ in range(count)])


def cached(rows, model, folder: Path, **options) -> CachedRows:
    return CachedRows(rows, folder, model, training_of(folder, per_device_eval_batch_size=3, **options))


@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 2e-3), (True, 2e-2)])
@torch.no_grad()
def test_cached_states_are_those_of_the_model(model, tmp_path, bf16, tolerance):
    """Computed row by row; in the cache, rows of similar lengths were a batch."""
    rows = rows_of(9)
    items = cached(rows, model, tmp_path, bf16=bf16)
    for i in range(9):
        ids = rows[i]["input_ids"]
        output = model.eval()(ids[None], return_last_hidden_state=True)
        assert torch.equal(items[i]["input_ids"], ids)
        states = items[i]["last_hidden_state"].float()
        torch.testing.assert_close(states, output.last_hidden_state[0], atol=tolerance, rtol=tolerance)
        # Of two tokens that are equally likely, up to rounding, either may be chosen.
        logits = output.logits[0]
        highest, chosen = logits.amax(-1), logits.gather(1, items[i]["shift_labels"][:, None])[:, 0]
        torch.testing.assert_close(chosen, highest, atol=tolerance, rtol=0)
        assert bf16 or torch.equal(items[i]["shift_labels"], logits.argmax(-1))


def test_training_from_cached_states(model, tmp_path, monkeypatch):
    """Loss and gradients of the heads are those of the model that reads the tokens, without running it."""
    items = cached(rows_of(4), model, tmp_path)
    batch = pad_batch([items[i] for i in range(4)])
    model.requires_grad_(False).ngram_heads.requires_grad_(True)
    # Without the model's dropout, which the cache does not have.
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda self, hidden: hidden)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda hidden, *args, **kwargs: hidden)
    gradients = []
    for inputs in ({name: tensor for name, tensor in batch.items() if name != "last_hidden_state"}, batch):
        if inputs is batch:
            monkeypatch.setattr(type(model.transformer), "forward", lambda *args, **kwargs: pytest.fail("ran it"))
        model.zero_grad(set_to_none=True)
        model.train()(**inputs).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.ngram_heads.parameters()])
    torch.testing.assert_close(*gradients, atol=2e-4, rtol=2e-2)


def test_run_on_own_text(checkpoint, tmp_path, monkeypatch):
    """Only the heads change. They are chosen by accepted drafts and draft by default; there is no ensemble."""
    monkeypatch.chdir(tmp_path)
    result, folder = heads.main([checkpoint, *QUICK["clm"], *HEADS]), tmp_path / "runs" / "heads"
    trained, plain = AutoModelForCausalLM.from_pretrained(folder), GPT2LMHeadModel.from_pretrained(checkpoint)
    weights, config = trained.state_dict(), trained.config
    assert all(torch.equal(weights[name], tensor) for name, tensor in plain.state_dict().items())
    assert len(trained.ngram_heads) == 2 and all(head.fc_out.weight.any() for head in trained.ngram_heads)
    assert (config.head_loss_tokens, config.ngram_head_expansion, config.head_sample_rate) == ("draft", 3, 1)
    assert result.fit is None and config.ensemble_weights is None and config.ensemble_lambda == result.ensemble == 0
    # The stock class is not told to draft.
    assert config.draft_by_default is True and "use_mtp" not in (folder / "generation_config.json").read_text()
    evaluations = [entry for entry in metrics_of(folder)["history"] if "eval_loss" in entry]
    for entry in evaluations:
        first, second = (entry[f"eval_head_{n}_acceptance"] for n in (1, 2))
        assert entry["eval_accepted_drafts"] == pytest.approx(first + first * second)
    state = json.loads((folder / "trainer_state.json").read_text())
    assert len(evaluations) == 2
    assert state["best_metric"] == max(entry["eval_accepted_drafts"] for entry in evaluations)
    # The tokens of the text that cover 98% of it are drafted.
    rows = RowStore(folder / "self_generated").rows
    held_out = max(1, round(len(rows) * 0.05))
    own, drafted = np.concatenate(rows[:-held_out]), trained.draft_token_ids.numpy()
    assert np.isin(own, drafted).mean() >= 0.98 > np.isin(own, drafted[:-1]).mean()
    assert result.splits["validation"]["num_tokens"] == total_length(rows[-held_out:]) - held_out
    # The run can be evaluated later, on the same held-out rows. Its heads can be trained further.
    again = run("clm", *EVALUATE, folder, "--sample_tokens", "0")
    assert again.splits["validation"]["perplexity"] == pytest.approx(result.splits["validation"]["perplexity"])
    heads.main([str(folder), *QUICK["clm"], *HEADS[:4], "--output_dir", "further"])
    assert AutoModelForCausalLM.from_pretrained("further").config.ngram_head_expansion == 3


@pytest.mark.parametrize(("stage", "writes"), [("_continue", True), ("best_tokens", False)])
def test_interrupted_run(checkpoint, files, tmp_path, monkeypatch, stage, writes):
    """While the model writes, or reads a given text. It ends with the bits of an uninterrupted run."""
    command = [checkpoint, *files, *QUICK["clm"], *HEADS[0 if writes else 4 :], "--output_dir"]
    original, calls = getattr(frozen_model_data, stage), []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(frozen_model_data, stage, interrupted)
        heads.main([*command, str(tmp_path / "parts")])
    for folder in ("parts", "whole"):
        result = heads.main([*command, str(tmp_path / folder)])
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")
    # The validation text is the given one.
    assert result.splits["validation"]["num_words"] == 320
