"""`generate(use_mtp=True)` of encoder-decoder models, greedy: token for token the text of plain decoding."""

import pytest
import torch

from tests.support.drafting import assert_drafts_change_nothing, plain, speculate
from tests.support.options import ALWAYS, END, NO_END, PAD
from tests.support.tiny import SEQ2SEQ, VOCAB_SIZE, left_pad
from tests.support.trained import POSITIONS, Language, pad, trained_seq2seq

START = 1
# 100 sources, for two λ with each model and target.
BATCH_SIZES = (4, 16, 1, 16, 15, 16, 16, 16)


@pytest.fixture(params=SEQ2SEQ)
def name(request):
    return request.param


def sources(count: int, seed: int) -> dict[str, torch.Tensor]:
    """A batch of sources of different lengths."""
    language = Language(seed)
    ids = pad([language.pair()[0] for _ in range(count)], PAD)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def test_same_text_as_plain_decoding(name, target, ensemble_lambda):
    seed = 2000 + 100 * int(10 * ensemble_lambda)
    batches = (sources(batch_size, seed + i) for i, batch_size in enumerate(BATCH_SIZES))
    assert_drafts_change_nothing(trained_seq2seq(name, target), batches, ensemble_lambda)


@pytest.mark.parametrize("returns", [True, False])
def test_batch_equals_rows_alone(name, returns, ensemble_lambda):
    model = trained_seq2seq(name, "wdr")
    inputs = sources(8, seed=1)
    options = {"ensemble_lambda": ensemble_lambda, "returns": returns, **ALWAYS}
    sequences, _ = speculate(model, **inputs, **options)
    lengths = set()
    for ids, text in zip(inputs["input_ids"], sequences, strict=True):
        alone = speculate(model, ids[ids != PAD][None], **options)[0][0]
        assert torch.equal(text[: len(alone)], alone)
        assert (text[len(alone) :] == PAD).all()
        lengths.add(len(alone))
    assert len(lengths) > 1


def test_decoder_prompts(name, target, ensemble_lambda):
    model = trained_seq2seq(name, target)
    language = Language(2)
    texts = torch.stack([language.text(12) for _ in range(8)])
    num_accepted = 0
    # The same beginning for different sources, then a different one for each.
    for i, prompt in enumerate((texts[:1, :3].repeat(8, 1), texts[:, :1], texts[:, :9])):
        prompt = torch.nn.functional.pad(prompt.masked_fill(prompt == END, 5), (1, 0), value=START)
        inputs = {**sources(8, seed=20 + i), "decoder_input_ids": prompt}
        expected = plain(model, **inputs, ensemble_lambda=ensemble_lambda)
        assert torch.equal(expected[:, : prompt.shape[1]], prompt)
        sequences, statistics = speculate(model, **inputs, ensemble_lambda=ensemble_lambda, **ALWAYS)
        assert torch.equal(sequences, expected)
        num_accepted += sum(statistics.num_accepted)
        sequences, _ = speculate(model, **inputs, returns=False, ensemble_lambda=ensemble_lambda, **ALWAYS)
        assert torch.equal(sequences, expected)
    assert num_accepted > 0


@pytest.mark.parametrize("returns", [True, False])
def test_padded_decoder_prompts(name, returns, ensemble_lambda):
    model = trained_seq2seq(name, "wdr")
    language = Language(3)
    prompts = [torch.cat([torch.tensor([START]), language.prompt(8)]) for _ in range(8)]
    ids, mask = left_pad(prompts)
    assert len({len(prompt) for prompt in prompts}) > 3
    inputs = {**sources(8, seed=5), "decoder_input_ids": ids, "decoder_attention_mask": mask}
    expected = plain(model, **inputs, ensemble_lambda=ensemble_lambda)
    sequences, _ = speculate(model, **inputs, returns=returns, ensemble_lambda=ensemble_lambda, **ALWAYS)
    assert torch.equal(sequences, expected)
    # The mask matters.
    del inputs["decoder_attention_mask"]
    assert not torch.equal(plain(model, **inputs, ensemble_lambda=ensemble_lambda), expected)


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
def test_no_room_for_all_heads(name, max_new_tokens, returns, ensemble_lambda):
    model = trained_seq2seq(name, "simple")
    inputs = sources(6, seed=6)
    options = {"ensemble_lambda": ensemble_lambda, "max_new_tokens": max_new_tokens}
    expected = plain(model, **inputs, **options)
    assert expected.shape[1] == 1 + max_new_tokens
    sequences, statistics = speculate(model, **inputs, returns=returns, **options, **ALWAYS)
    assert torch.equal(sequences, expected)
    if returns:
        # Two tokens come from the forward passes themselves, the first and that which checks the drafts.
        assert len(statistics.num_drafted) == max(max_new_tokens - 2, 0)


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("name", ["marian", "bart"])
def test_up_to_the_last_position(name, target, returns, ensemble_lambda):
    """The last token is not read, so that a text can have one token more than there are positions."""
    model = trained_seq2seq(name, target)
    batch, row = sources(8, seed=9), sources(1, seed=10)
    texts = plain(model, **batch, **NO_END, ensemble_lambda=ensemble_lambda, max_new_tokens=POSITIONS)
    # A token that about half of the rows have is an end that the others never come to.
    end = min(range(2, VOCAB_SIZE), key=lambda token: abs(int((texts == token).any(1).sum()) - 4))
    some_end = {**NO_END, "eos_token_id": end}
    for inputs, max_length, ends in (
        (batch, POSITIONS, some_end),
        (batch, POSITIONS + 1, NO_END),
        (row, POSITIONS + 1, NO_END),
    ):
        options = {**ends, "ensemble_lambda": ensemble_lambda, "max_new_tokens": None, "max_length": max_length}
        expected = plain(model, **inputs, **options)
        assert expected.shape[1] == max_length
        assert bool((expected[:, -1] == PAD).any()) == (ends is some_end)
        sequences, statistics = speculate(model, **inputs, returns=returns, **options, **ALWAYS)
        assert torch.equal(sequences, expected)
        if returns:
            assert statistics.tokens_per_forward > 1
