"""The cache that `generate(use_mtp=True)` leaves is the one that plain decoding leaves, and serves as well."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from ngram_wdr_hf.decoding.cache_history import layers_and_history
from tests.support.options import DRAFTS, EVERYTHING, NO_END, PAD
from tests.support.side_by_side import assert_same_generation, generate, generate_both, row_lengths, were_drafts_right
from tests.support.tiny import SEQ2SEQ, model_of, prompts, random_ids

NAMES = ["gpt2", "marian", "t5"]


def layers_of(cache) -> list:
    """Return all layers, the ensemble's history included."""
    crossed = cache.cross_attention_cache.layers if isinstance(cache, EncoderDecoderCache) else []
    return [*layers_and_history(cache), *crossed]


def assert_same_cache(actual, wanted, mask: torch.Tensor, tolerance: float = 1e-8) -> None:
    """Check for the same length, the same layers and, outside padding, the same contents."""
    assert type(actual) is type(wanted) and actual.get_seq_length() == wanted.get_seq_length()
    for layer, other in zip(layers_of(actual), layers_of(wanted), strict=True):
        assert type(layer) is type(other) and layer.get_seq_length() == other.get_seq_length()
        for states, expected in ((layer.keys, other.keys), (layer.values, other.values)):
            assert states.shape == expected.shape and states.dtype == expected.dtype
            if states.shape[2] == mask.shape[1]:
                states, expected = (each.transpose(1, 2)[mask] for each in (states, expected))
            torch.testing.assert_close(states, expected, rtol=0, atol=tolerance)


def mask_of_the_cache(inputs, output) -> torch.Tensor:
    """Which columns are real: all but the padding before a prompt. The last token has not been read."""
    mask = inputs["attention_mask"].bool()
    return torch.nn.functional.pad(mask, (0, output.sequences.shape[1] - 1 - mask.shape[1]), value=True)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
@pytest.mark.parametrize("name", NAMES)
def test_returned_cache(name, ensemble_lambda, batch_size):
    """Rows that ended early, too, have read as much padding as they do in plain decoding."""
    model, inputs = model_of(name, ensemble_lambda=ensemble_lambda), prompts(batch_size, name)
    free = generate(model, inputs, **EVERYTHING, **NO_END)
    ends_differ = False
    for end in [None, *free.sequences[:, -len(free.scores) :].unique().tolist()]:
        plain, speculative = generate_both(model, inputs, eos_token_id=end, pad_token_id=PAD)
        mask = mask_of_the_cache(inputs, plain)
        if name in SEQ2SEQ:
            mask = torch.ones(batch_size, plain.sequences.shape[1] - 1, dtype=torch.bool)
        assert speculative.past_key_values.get_seq_length() == mask.shape[1]
        assert_same_cache(speculative.past_key_values, plain.past_key_values, mask)
        ends_differ |= len(set(row_lengths(plain, [end]))) > 1
    assert ends_differ or batch_size == 1


def continued(model, inputs, output, added: torch.Tensor, **options):
    """Continue a generation after some added tokens, with or without its cache."""
    ids = torch.cat([output.sequences, added], dim=1)
    if model.config.is_encoder_decoder:
        return generate(
            model, {**inputs, "decoder_input_ids": ids, "decoder_attention_mask": torch.ones_like(ids)}, **options
        )
    mask = inputs["attention_mask"]
    mask = torch.cat([mask, mask.new_ones(len(ids), ids.shape[1] - mask.shape[1])], dim=1)
    return generate(model, {"input_ids": ids, "attention_mask": mask}, **options)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
@pytest.mark.parametrize(("first", "second"), [({}, DRAFTS), (DRAFTS, {}), (DRAFTS, DRAFTS)])
@pytest.mark.parametrize("name", NAMES)
def test_continued_from_a_returned_cache(name, first, second, ensemble_lambda, batch_size):
    model, inputs = model_of(name, ensemble_lambda=ensemble_lambda), prompts(batch_size, name)
    options = {"max_new_tokens": 10, **EVERYTHING, **NO_END}
    output = generate(model, inputs, **options, **first)
    # First without added tokens, then with random ones.
    for length in (0, 3):
        added = random_ids(batch_size, length, seed=9)
        anew = continued(model, inputs, output, added, **options)
        again = continued(model, inputs, output, added, past_key_values=output.past_key_values, **options, **second)
        assert again.past_key_values is output.past_key_values
        assert torch.equal(again.sequences, anew.sequences)
        for logits, wanted in zip(again.logits, anew.logits, strict=True):
            torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4)
        assert again.past_key_values.get_seq_length() == anew.past_key_values.get_seq_length()
        output = again


def test_continued_after_rows_of_different_lengths():
    """What comes after a row's end is padding that the row has read."""
    model, inputs = model_of("gpt2", seed=1, ensemble_lambda=0.4), prompts(4)
    options = {"eos_token_id": [5, 9, 20], "pad_token_id": PAD, **EVERYTHING}
    output = generate(model, inputs, **options, **DRAFTS)
    assert len(set(row_lengths(output, [5, 9, 20]))) > 1
    added = random_ids(4, 3, seed=9)
    anew = continued(model, inputs, output, added, **options)
    again = continued(model, inputs, output, added, past_key_values=output.past_key_values, **options, **DRAFTS)
    assert_same_generation(anew, again, [5, 9, 20])


@pytest.mark.parametrize("output", [{}, EVERYTHING], ids=["tokens", "everything"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("ensemble_lambda", [0.0, 0.4])
@torch.no_grad()
def test_cache_of_the_users_own(ensemble_lambda, batch_size, output):
    """A user's cache that holds the beginning of the prompt is used, and can be used again afterwards."""
    model, inputs = model_of("gpt2", ensemble_lambda=ensemble_lambda), prompts(batch_size)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    cache, read = DynamicCache(), []
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    model(ids[:, :4], attention_mask=mask[:, :4], position_ids=positions[:, :4], past_key_values=cache)
    model.transformer.register_forward_hook(lambda _, args, output: read.append(output[0].shape[1]))
    options = {"past_key_values": cache, **output, **NO_END, **DRAFTS}
    generated = generate(model, inputs, **options)
    assert read[0] == 2
    if output:
        assert generated.past_key_values is cache and were_drafts_right(generated)
        generated = generated.sequences
    anew = generate(model, inputs, **EVERYTHING, **NO_END)
    assert torch.equal(generated, anew.sequences)
    assert_same_cache(cache, anew.past_key_values, mask_of_the_cache(inputs, anew))
    again = continued(model, inputs, anew, ids[:, :0], **options)
    longer = generate(model, inputs, max_new_tokens=40, **NO_END)
    assert torch.equal(again.sequences if output else again, longer)


@torch.no_grad()
def test_new_tokens_alone():
    """As in plain decoding, the mask says that the rest of the prompt is in the cache."""
    model, ids = model_of("gpt2", ensemble_lambda=0.4), random_ids(1, 7)
    outputs = []
    for drafts in ({}, DRAFTS):
        cache = DynamicCache()
        model(ids[:, :4], past_key_values=cache)
        inputs = {"input_ids": ids[:, 4:], "attention_mask": torch.ones_like(ids), "past_key_values": cache}
        outputs.append(generate(model, inputs, **EVERYTHING, **NO_END, **drafts))
    assert_same_generation(*outputs, ends=())
    assert_same_cache(outputs[1].past_key_values, outputs[0].past_key_values, torch.ones(1, 26, dtype=torch.bool))
    assert torch.equal(outputs[1].sequences[:, 3:], generate(model, {"input_ids": ids}, **NO_END)[:, 7:])
