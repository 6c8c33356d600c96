"""Encoder-decoder models read through caches: in chunks, after prompts, continued, cropped and reordered."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.support import reference
from tests.support.encoder_decoder import (
    STEPS,
    cached_logits,
    empty_cache,
    encode,
    lengths_read,
    padded_sources,
    prompt,
)
from tests.support.generation import assert_same_generation, generate
from tests.support.options import NO_END, STRATEGIES, cache_options
from tests.support.tiny import left_pad, random_ids, right_pad, tiny_seq2seq


@pytest.mark.parametrize("option", ["greedy", "sampling", "beam search"])
@pytest.mark.parametrize("cache", ["static", "chunked", "chunked static", "compiled static"])
def test_caches(name, cache, option):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    ids, mask = padded_sources()
    if "chunked" in cache:
        # For chunks, Transformers uses the source's mask as that of the prompt.
        ids, mask = random_ids(2, 6), None
    options = {"attention_mask": mask, "decoder_input_ids": prompt(2, 7), **STRATEGIES[option], **NO_END}
    expected = generate(model, ids, use_cache=False, **options)
    options |= cache_options(cache)
    if "compiled" in cache:
        actual = generate(model, ids, **options)
    else:
        with lengths_read(model) as lengths:
            actual = generate(model, ids, **options)
        assert lengths[:3] == ([3, 3, 1] if "chunked" in cache else [7, 1, 1])
    kind = StaticCache if "static" in cache else DynamicCache
    assert isinstance(actual.past_key_values.self_attention_cache, kind)
    assert_same_generation(actual, expected)


CHUNKS = [[1] * 12, [5, 1, 1, 5], [11, 1]]


@pytest.mark.parametrize("kind", ["none", "dynamic", "dynamic with config", "static"])
@torch.no_grad()
def test_prompt_in_chunks_by_hand(name, kind, target):
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    ids = prompt(2, 12)
    sources, source_mask = right_pad([random_ids(1, 5)[0], random_ids(1, 2, seed=1)[0]])
    expected = reference.ensembled_logits(model, ids, 0.4, encoder_ids=sources, encoder_mask=source_mask)
    whole = model(sources, attention_mask=source_mask, decoder_input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(whole, expected)
    encoded = encode(model, sources, source_mask)
    for chunks in CHUNKS:
        # Without a given cache, the backbone creates one and returns it.
        cache = None if kind == "none" else empty_cache(model, kind)
        actual = cached_logits(model, ids, encoded, chunks, cache, source_mask=source_mask)
        torch.testing.assert_close(actual, expected)


@torch.no_grad()
def test_generation_after_a_prompt_equals_slow_generation(name, target):
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    sources, ids = random_ids(2, 6), prompt(2, 5)
    output = generate(model, sources, decoder_input_ids=ids, **NO_END)
    assert torch.equal(output.sequences[:, :5], ids)
    logits = reference.ensembled_logits(model, output.sequences[:, :-1], 0.4, encoder_ids=sources)[:, 4:]
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits.float())
    assert torch.equal(output.sequences[:, 5:], logits.argmax(-1))


@torch.no_grad()
def test_left_padded_prompts(name, target):
    """Padding is not in the history. Marian and BART count positions through it, like the stock models."""
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    rows = [prompt(1, length, seed=length)[0] for length in (12, 7, 4, 1)]
    ids, mask = left_pad(rows)
    sources = random_ids(4, 6)
    batch = model(sources, decoder_input_ids=ids, decoder_attention_mask=mask, use_cache=False).logits
    encoded = encode(model, sources)
    by_chunk = [cached_logits(model, ids, encoded, chunks, empty_cache(model), mask) for chunks in CHUNKS]
    expected = reference.ensembled_logits(model, ids, 0.4, attention_mask=mask, encoder_ids=sources)
    for b, row in enumerate(rows):
        for actual in [batch, *by_chunk]:
            torch.testing.assert_close(actual[b, -len(row) :], expected[b, -len(row) :])
        if name == "t5":
            alone = model(sources[b : b + 1], decoder_input_ids=row[None]).logits[0]
            torch.testing.assert_close(batch[b, -len(row) :], alone)


@pytest.mark.parametrize("option", ["greedy", "beam search"])
@torch.no_grad()
def test_generation_after_left_padded_prompts(name, option):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    rows = [prompt(1, length, seed=length)[0] for length in (5, 2)]
    ids, mask = left_pad(rows)
    sources = random_ids(2, 6)
    options = {**STRATEGIES[option], **NO_END, "decoder_input_ids": ids, "decoder_attention_mask": mask}
    cached = generate(model, sources, **options)
    assert_same_generation(cached, generate(model, sources, use_cache=False, **options))
    if option == "greedy":
        whole = torch.cat([mask, mask.new_ones(2, STEPS - 1)], dim=1)
        logits = reference.ensembled_logits(
            model, cached.sequences[:, :-1], 0.4, attention_mask=whole, encoder_ids=sources
        )
        torch.testing.assert_close(torch.stack(cached.logits, dim=1), logits[:, 4:].float())
    if name == "t5":
        for b, row in enumerate(rows):
            alone = generate(
                model, sources[b : b + 1], decoder_input_ids=row[None], **STRATEGIES[option], **NO_END
            ).sequences
            assert torch.equal(cached.sequences[b, 5:], alone[0, len(row) :])


def continue_from(model, sources, ids, cache, **options):
    """As for a decoder-only model, the length of the mask tells `generate` how many tokens the cache has."""
    return generate(
        model,
        sources,
        decoder_input_ids=ids,
        decoder_attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        **options,
    )


def test_continued_from_a_returned_cache(name):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources = random_ids(2, 6)
    output = generate(model, sources, max_new_tokens=4, **NO_END)
    options = {**NO_END, "max_new_tokens": 5}
    # Directly after the text, then after other tokens.
    for added in (0, 3):
        ids = torch.cat([output.sequences, random_ids(2, added, seed=9)], dim=1)
        anew = generate(model, sources, decoder_input_ids=ids, **options)
        with lengths_read(model) as lengths:
            output = continue_from(model, sources, ids, output.past_key_values, **options)
        assert lengths == [1 + added, 1, 1, 1, 1]
        assert_same_generation(output, anew)


def test_generation_from_a_cache_filled_by_hand(name):
    model = tiny_seq2seq(name, torch.float64, ensemble_lambda=0.4)
    sources, ids, cache = random_ids(1, 6), prompt(1, 9), empty_cache(model)
    with torch.no_grad():
        cached_logits(model, ids[:, :6], encode(model, sources), [4, 2], cache)
    output = continue_from(model, sources, ids, cache)
    assert_same_generation(output, generate(model, sources, decoder_input_ids=ids))


@torch.no_grad()
def test_cache_operations(name, target):
    """Operations on the cache also change the history."""
    model = tiny_seq2seq(name, torch.float64, ngram_target=target, ensemble_lambda=0.4)
    sources, ids, more = random_ids(3, 5, seed=2), prompt(3, 8), random_ids(3, 3, seed=5)

    def fresh(kind="dynamic"):
        cache = empty_cache(model, kind)
        cached_logits(model, ids, encode(model, sources), [8], cache)
        return cache

    def check(cache, before, after, rows):
        """`before` is in the cache, `after` is read now; both follow the sources of `rows`."""
        read = sources[rows]
        actual = cached_logits(model, after, encode(model, read), [1] * after.shape[1], cache)
        whole = torch.cat([before, after], 1)
        expected = model(read, decoder_input_ids=whole, use_cache=False).logits[:, before.shape[1] :]
        torch.testing.assert_close(actual, expected)

    everything = torch.arange(3)
    for removed in (3, 7):
        cache = fresh()
        cache.crop(-removed)
        check(cache, ids[:, : 8 - removed], more, everything)
    order = torch.tensor([2, 0, 0])
    for kind in ("dynamic", "static"):
        cache = fresh(kind)
        cache.reorder_cache(order)
        check(cache, ids[order], more, order)
    cache = fresh()
    selected = torch.tensor([2, 1])
    cache.batch_select_indices(selected)
    check(cache, ids[selected], more[:2], selected)
    cache = fresh()
    cache.batch_repeat_interleave(2)
    twice = everything.repeat_interleave(2)
    check(cache, ids[twice], more.repeat(2, 1), twice)
    for kind in ("dynamic", "static"):
        cache = fresh(kind)
        cache.reset()
        check(cache, ids[:, :0], more, everything)


@torch.no_grad()
def test_lambda_that_changes_between_steps(name):
    """A step with λ = 0 is a gap in the history, which no prediction crosses."""
    model = tiny_seq2seq(name, torch.float64)
    sources, ids, cache = random_ids(2, 5), prompt(2, 9), empty_cache(model)
    encoded = encode(model, sources)
    cached_logits(model, ids[:, :4], encoded, [4], cache, ensemble_lambda=0.2)
    actual = cached_logits(model, ids[:, 4:6], encoded, [2], cache, ensemble_lambda=0.7)
    torch.testing.assert_close(actual, reference.ensembled_logits(model, ids[:, :6], 0.7, encoder_ids=sources)[:, 4:])
    cached_logits(model, ids[:, 6:7], encoded, [1], cache, ensemble_lambda=0.0)
    actual = cached_logits(model, ids[:, 7:], encoded, [1, 1], cache, ensemble_lambda=0.7)
    expected = reference.ensembled_logits(model, ids, 0.7, first_known=7, encoder_ids=sources)
    torch.testing.assert_close(actual, expected[:, 7:])
