"""The ensemble's history in a cache: out of sight of whatever counts layers, and part of whatever is done to them."""

import copy
import pickle
import sys
from itertools import product

import pytest
import torch
from transformers import Cache, DynamicCache, EncoderDecoderCache, Lfm2Config, Lfm2ForCausalLM, StaticCache

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.decoding.cache_history import NgramHistory, history_of, layers_and_history
from tests.support.backbones import tiny_backbone
from tests.support.options import DRAFTS, EVERYTHING
from tests.support.side_by_side import assert_same_generation, generate, were_drafts_right
from tests.support.tiny import LLAMA_SIZES, model_of, random_ids

ENSEMBLE = {"ensemble_lambda": 0.6}


def hybrid_model():
    """A model whose first layer has no attention."""
    sizes = {**LLAMA_SIZES, "initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 0}
    config = Lfm2Config(**sizes, layer_types=["conv", "full_attention"], block_multiple_of=16)
    return with_ngram_heads(Lfm2ForCausalLM(config)).double().eval()


CACHES = {
    "lazy": (lambda: model_of("gpt2"), lambda config: DynamicCache()),
    "dynamic": (lambda: model_of("gpt2"), lambda config: DynamicCache(config=config)),
    "static": (lambda: model_of("gpt2"), lambda config: StaticCache(config=config, max_cache_len=16)),
    "sliding": (lambda: tiny_backbone("mistral"), lambda config: DynamicCache(config=config)),
    "hybrid": (hybrid_model, lambda config: DynamicCache(config=config)),
    "encoder-decoder": (lambda: model_of("marian"), lambda _: EncoderDecoderCache(DynamicCache(), DynamicCache())),
}
ORDER = torch.tensor([2, 0, 0])
# What is done to a cache, and to the tokens in it.
VERBS = {
    "reorder": (lambda cache: cache.reorder_cache(ORDER), lambda ids: ids[ORDER]),
    "select": (lambda cache: cache.batch_select_indices(ORDER[:2]), lambda ids: ids[ORDER[:2]]),
    "repeat": (lambda cache: cache.batch_repeat_interleave(2), lambda ids: ids.repeat_interleave(2, dim=0)),
    "crop": (lambda cache: cache.crop(-2), lambda ids: ids[:, :-2]),
    "reset": (lambda cache: cache.reset(), lambda ids: ids[:, :0]),
    "copy": (copy.deepcopy, lambda ids: ids),
    "pickle": (lambda cache: pickle.loads(pickle.dumps(cache)), lambda ids: ids),
}
# Transformers' own layers have no such method.
IMPOSSIBLE = {("static", verb) for verb in ("select", "repeat", "crop")} | {("hybrid", "select"), ("hybrid", "repeat")}


def read(model, ids: torch.Tensor, **options):
    if model.config.is_encoder_decoder:
        source = random_ids(1, 5, seed=9).expand(len(ids), -1)
        return model(source, decoder_input_ids=ids, **options)
    return model(ids, **options)


def assert_as_anew(model, cache: Cache, ids: torch.Tensor, num_new: int) -> None:
    """Read the last tokens with the cache, and compare with a forward pass over all of them."""
    cached = read(model, ids[:, -num_new:], past_key_values=cache, **ENSEMBLE).logits
    anew = read(model, ids, use_cache=False, **ENSEMBLE).logits[:, -num_new:]
    torch.testing.assert_close(cached, anew, rtol=0, atol=1e-9)
    plain = read(model, ids, use_cache=False).logits[:, -num_new:]
    assert (anew - plain).abs().max() > 0.1


@pytest.mark.parametrize(("kind", "verb"), [pair for pair in product(CACHES, VERBS) if pair not in IMPOSSIBLE])
@torch.no_grad()
def test_verbs_reach_the_history(kind, verb):
    model, cache, ids = CACHES[kind][0](), None, random_ids(3, 7)
    cache = CACHES[kind][1](model.config)
    cache.activate_past_recording()
    read(model, ids, past_key_values=cache, **ENSEMBLE)
    do, change = VERBS[verb]
    cache, original, ids = do(cache) or cache, cache, change(ids)
    if cache is not original:
        # What happens to the original does not reach the copy.
        original.reset()
    # Twice, as what a step leaves in the cache counts as well.
    for step in range(2):
        ids = torch.cat([ids, random_ids(len(ids), 2, seed=step)], dim=1)
        assert_as_anew(model, cache, ids, 2)


@pytest.mark.parametrize("kind", ["lazy", "dynamic", "sliding", "encoder-decoder"])
@torch.no_grad()
def test_tokens_read_without_the_ensemble(kind):
    """They are in the cache, but not in the history, which begins anew after them."""
    model, ids = CACHES[kind][0](), random_ids(2, 12)
    cache = CACHES[kind][1](model.config)
    cache.activate_past_recording()
    read(model, ids[:, :6], past_key_values=cache, **ENSEMBLE)
    read(model, ids[:, 6:9], past_key_values=cache)
    # A crop that removes them leaves the history alone.
    cropped = copy.deepcopy(cache)
    cropped.crop(-3)
    assert_as_anew(model, cropped, ids[:, :8], 2)
    after = read(model, ids[:, 9:11], past_key_values=cache, **ENSEMBLE).logits
    # The first token has no history, the second has the first.
    plain = read(model, ids[:, :11], use_cache=False).logits[:, -2:]
    torch.testing.assert_close(after[:, 0], plain[:, 0], rtol=0, atol=1e-9)
    assert (after[:, 1] - plain[:, 1]).abs().max() > 0.01


@pytest.mark.parametrize("drafted_lambda", [0.0, 0.4])
@torch.no_grad()
def test_drafts_after_tokens_without_the_ensemble(drafted_lambda):
    """A batch with drafts shifts rows of the cache. The history follows, unless it ends before the drafts."""
    model, ids = model_of("gpt2", ensemble_lambda=0.4), random_ids(3, 9, seed=5)
    options = {"eos_token_id": [0, 5, 9], "pad_token_id": 1, "ensemble_lambda": drafted_lambda, **EVERYTHING}
    outputs = []
    for drafts in ({}, DRAFTS):
        cache = DynamicCache()
        for part, value in ((ids[:, :4], 0.4), (ids[:, 4:6], 0.0), (ids[:, 6:8], 0.4)):
            model(part, past_key_values=cache, ensemble_lambda=value)
        outputs.append(generate(model, {"input_ids": ids}, past_key_values=cache, **options, **drafts))
    assert_same_generation(*outputs, ends=[0, 5, 9])
    assert were_drafts_right(outputs[1])


def looks(cache: Cache) -> list:
    """Return what a caller can see of a cache and its layers."""
    if isinstance(cache, EncoderDecoderCache):
        return [looks(cache.self_attention_cache), looks(cache.cross_attention_cache)]
    states = [{name: x.tolist() for name, x in vars(layer).items() if torch.is_tensor(x)} for layer in cache.layers]
    names = ("is_compileable", "is_croppable", "is_initialized", "is_sliding")
    flags = [getattr(cache, name, None) for name in names]  # `is_croppable` is new in 5.17
    return [len(cache), cache.get_seq_length(), cache.get_max_length(), flags, states]


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_looks_like_the_backbones_cache(kind):
    model, caches = CACHES[kind][0](), []
    for options in ({}, ENSEMBLE):
        caches.append(CACHES[kind][1](model.config))
        assert read(model, random_ids(2, 5), past_key_values=caches[-1], **options).past_key_values is caches[-1]
    plain, ensembled = map(layers_and_history, caches)
    assert len(ensembled) == len(plain) + 1
    assert looks(caches[1]) == looks(caches[0])
    # Transformers' exporter finds the classes of layers by their names.
    for layer_class in map(type, ensembled if kind != "hybrid" else ()):
        assert vars(sys.modules[layer_class.__module__])[layer_class.__qualname__] is layer_class


@torch.no_grad()
def test_offloaded_and_moved(monkeypatch):
    cache, offloaded = DynamicCache(), []
    read(model_of("gpt2"), random_ids(2, 5), past_key_values=cache, **ENSEMBLE)
    monkeypatch.setattr(NgramHistory, "offload", lambda layer: offloaded.append(layer))
    for index in range(len(cache)):
        cache.offload(index)
    carried = layers_and_history(cache)[-1]
    assert offloaded == [carried]
    # A device other than that of the CPU, which may be the only real one.
    moved = history_of(cache, 3, torch.device("meta"))
    assert moved is carried and moved.keys.device == moved.values.device == torch.device("meta")
