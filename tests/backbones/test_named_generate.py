"""Every backbone generates: caches, padded prompts, beams and drafts."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StaticCache

from tests.support.backbones import BACKBONES, SOURCE, assert_close, forward_inputs, tiny_backbone
from tests.support.generation import differ
from tests.support.options import DRAFTS, EVERYTHING, NO_END
from tests.support.side_by_side import assert_same_generation, generate, generate_both, were_drafts_right
from tests.support.tiny import left_pad, random_ids, right_pad

LENGTH = 12


def new_cache(model: PreTrainedModel, kind: str) -> DynamicCache | StaticCache | EncoderDecoderCache | None:
    """Return a cache with room for a few more tokens; `None` if the model creates its own."""
    if kind == "its own":
        return None
    lengths = [LENGTH + 3, SOURCE.shape[1]] if model.config.is_encoder_decoder else [LENGTH + 3]
    if kind == "static":
        caches = [StaticCache(config=model.config, max_cache_len=length) for length in lengths]
    else:
        caches = [DynamicCache(config=model.config) for _ in lengths]
    return EncoderDecoderCache(*caches) if model.config.is_encoder_decoder else caches[0]


def cached_logits(model: PreTrainedModel, ids: torch.LongTensor, pieces: list[int], kind: str) -> torch.Tensor:
    """Logits of every position, read through a cache in pieces of the given lengths."""
    cache, logits = new_cache(model, kind), []
    for piece in ids.split(pieces, dim=1):
        output = model(**forward_inputs(model, piece), **{model.ngram_cache_name: cache}, use_cache=True)
        cache = output[model.ngram_cache_name]
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


@torch.no_grad()
def test_cached_equals_uncached(name):
    model, ids = tiny_backbone(name, ensemble_lambda=0.4), random_ids(2, LENGTH)
    inputs = forward_inputs(model, ids)
    uncached = model(**inputs, use_cache=False).logits
    assert not torch.allclose(uncached, model(**inputs, use_cache=False, ensemble_lambda=0.0).logits, atol=0.01)
    pieces, kinds = [[12], [1] * 12, [5, 1, 6]], ["dynamic", "static"]
    refusal = BACKBONES[name].refuses.get("caches of Transformers")
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            cached_logits(model, ids, [12], "dynamic")
        pieces, kinds = [[12], [1] * 12, [5, *[1] * 7]], ["its own"]
    for kind in kinds:
        for lengths in pieces:
            assert_close(cached_logits(model, ids, lengths, kind), uncached, f"{kind}, {lengths}")


def prompts(model: PreTrainedModel) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """A batch for `generate`, padded on the side that the model wants, and its rows."""
    rows = [random_ids(1, length, seed=length)[0] for length in (6, 3, 4)]
    ids, mask = right_pad(rows) if model.config.is_encoder_decoder else left_pad(rows)
    return {"input_ids": ids, "attention_mask": mask}, rows


def test_padded_prompts_are_prompts_alone(name):
    model = tiny_backbone(name).to(BACKBONES[name].padded_dtype)
    inputs, rows = prompts(model)
    options = {"max_new_tokens": 8, **EVERYTHING, **NO_END}
    refusal = BACKBONES[name].refuses.get("padded prompts")
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            generate(model, inputs, **options)
        return
    batch = generate(model, inputs, ensemble_lambda=0.4, **options)
    for i, row in enumerate(rows):
        alone = generate(model, {"input_ids": row[None]}, ensemble_lambda=0.4, **options)
        assert torch.equal(batch.sequences[i, -8:], alone.sequences[0, -8:])
        logits, expected = (torch.stack(output.logits, dim=1) for output in (batch, alone))
        torch.testing.assert_close(logits[i], expected[0], rtol=1e-4, atol=1e-4)
    assert differ(generate(model, inputs, ensemble_lambda=0.0, **options), batch)


def test_beam_search_cached_equals_uncached(name):
    model, inputs = tiny_backbone(name), {"input_ids": random_ids(2, 6)}
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 6, **EVERYTHING, **NO_END}
    cached = generate(model, inputs, ensemble_lambda=0.4, **options)
    uncached = generate(model, inputs, ensemble_lambda=0.4, use_cache=False, **options)
    assert torch.equal(cached.sequences, uncached.sequences)
    assert_close(cached.sequences_scores, uncached.sequences_scores)
    assert_close(torch.stack(cached.scores), torch.stack(uncached.scores))
    # Beams were reordered, and the search without the ensemble gives another result.
    assert (cached.beam_indices[:, 1:] != cached.beam_indices[:, :-1]).any()
    plain = generate(model, inputs, ensemble_lambda=0.0, **options)
    assert not torch.allclose(plain.sequences_scores, cached.sequences_scores, atol=0.01)


def test_drafts_change_nothing(name):
    model = tiny_backbone(name).to(BACKBONES[name].padded_dtype)
    refusal = BACKBONES[name].refuses.get("drafts")
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            generate(model, {"input_ids": random_ids(2, 6)}, **DRAFTS)
        return
    inputs, _ = prompts(model)
    outputs = {value: generate_both(model, inputs, ensemble_lambda=value, **NO_END) for value in (0.0, 0.4)}
    for plain, speculative in outputs.values():
        assert_same_generation(plain, speculative, ends=())
    assert any(were_drafts_right(speculative) for _, speculative in outputs.values())
    assert differ(outputs[0.0][0], outputs[0.4][0])
