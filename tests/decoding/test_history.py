"""The ensemble's history in a cache: out of sight of whatever counts layers, and part of whatever is done to them."""

import copy
import pickle
import sys
from collections.abc import Callable
from itertools import product

import pytest
import torch
from transformers import (
    Cache,
    DynamicCache,
    EncoderDecoderCache,
    Lfm2Config,
    Lfm2ForCausalLM,
    StaticCache,
)

from ngram_wdr_hf import WDRNgramMistralConfig, WDRNgramMistralForCausalLM, with_ngram_heads
from ngram_wdr_hf.decoding.cache_history import NgramHistory, history_of, layers_and_history
from tests.support.options import DRAFTS, EVERYTHING
from tests.support.side_by_side import assert_same_generation, generate, were_drafts_right
from tests.support.tiny import LLAMA_SIZES, model_of, random_ids

SIZES = {**LLAMA_SIZES, "initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 0}


def sliding_model():
    return WDRNgramMistralForCausalLM(WDRNgramMistralConfig(**SIZES, sliding_window=4))


def hybrid_model():
    """A model whose first layer has no attention."""
    config = Lfm2Config(**SIZES, layer_types=["conv", "full_attention"], block_multiple_of=16)
    return with_ngram_heads(Lfm2ForCausalLM(config))


MODELS = {
    "gpt2": lambda: model_of("gpt2"),
    "marian": lambda: model_of("marian"),
    "mistral": sliding_model,
    "lfm2": hybrid_model,
}
CACHES = {
    "lazy": ("gpt2", lambda config: DynamicCache()),
    "dynamic": ("gpt2", lambda config: DynamicCache(config=config)),
    "static": ("gpt2", lambda config: StaticCache(config=config, max_cache_len=16)),
    "sliding": ("mistral", lambda config: DynamicCache(config=config)),
    "hybrid": ("lfm2", lambda config: DynamicCache(config=config)),
    "encoder-decoder": ("marian", lambda config: EncoderDecoderCache(DynamicCache(), DynamicCache())),
}


def pickled(cache: Cache, ids: torch.Tensor) -> tuple[Cache, torch.Tensor]:
    return pickle.loads(pickle.dumps(cache)), ids


def copied(cache: Cache, ids: torch.Tensor) -> tuple[Cache, torch.Tensor]:
    copy_of_it = copy.deepcopy(cache)
    # What happens to the original does not reach the copy.
    cache.reset()
    return copy_of_it, ids


def done(name: str, argument, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable:
    """Return a function that calls a method of the cache, and makes the same change to the tokens in it."""

    def do(cache: Cache, ids: torch.Tensor) -> tuple[Cache, torch.Tensor]:
        arguments = () if argument is None else (argument,)
        getattr(cache, name)(*arguments)
        return cache, change(ids)

    return do


ORDER = torch.tensor([2, 0, 0])
VERBS = {
    "reorder": done("reorder_cache", ORDER, lambda ids: ids[ORDER]),
    "select": done("batch_select_indices", ORDER[:2], lambda ids: ids[ORDER[:2]]),
    "repeat": done("batch_repeat_interleave", 2, lambda ids: ids.repeat_interleave(2, dim=0)),
    "crop": done("crop", -2, lambda ids: ids[:, :-2]),
    "reset": done("reset", None, lambda ids: ids[:, :0]),
    "copy": copied,
    "pickle": pickled,
}
# Transformers' own layers have no such method.
IMPOSSIBLE = {("static", verb) for verb in ("select", "repeat", "crop")} | {("hybrid", "select"), ("hybrid", "repeat")}


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    return {name: make().double().eval() for name, make in MODELS.items()}


def read(model, ids: torch.Tensor, **options):
    if model.config.is_encoder_decoder:
        source = random_ids(1, 5, seed=9).expand(len(ids), -1)
        return model(source, decoder_input_ids=ids, **options)
    return model(ids, **options)


@pytest.mark.parametrize(("kind", "verb"), [pair for pair in product(CACHES, VERBS) if pair not in IMPOSSIBLE])
@torch.no_grad()
def test_verbs_reach_the_history(models, kind, verb):
    name, make = CACHES[kind]
    model = models[name]
    cache, ids = make(model.config), random_ids(3, 7)
    cache.activate_past_recording()
    read(model, ids, past_key_values=cache, ensemble_lambda=0.6)
    cache, ids = VERBS[verb](cache, ids)
    # Twice, as what a step leaves in the cache counts as well.
    for step in range(2):
        ids = torch.cat([ids, random_ids(len(ids), 2, seed=step)], dim=1)
        cached = read(model, ids[:, -2:], past_key_values=cache, ensemble_lambda=0.6).logits
        anew = read(model, ids, use_cache=False, ensemble_lambda=0.6).logits[:, -2:]
        torch.testing.assert_close(cached, anew, rtol=0, atol=1e-9)
    plain = read(model, ids, use_cache=False, ensemble_lambda=0.0).logits[:, -2:]
    assert (anew - plain).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["lazy", "dynamic", "sliding", "encoder-decoder"])
@torch.no_grad()
def test_tokens_read_without_the_ensemble(models, kind):
    """They are in the cache, but not in the history, which begins anew after them."""
    name, make = CACHES[kind]
    model, cache, ids = models[name], make(models[name].config), random_ids(2, 12)
    cache.activate_past_recording()
    read(model, ids[:, :6], past_key_values=cache, ensemble_lambda=0.6)
    read(model, ids[:, 6:9], past_key_values=cache, ensemble_lambda=0.0)
    # A crop that removes them leaves the history alone.
    cropped = copy.deepcopy(cache)
    cropped.crop(-3)
    cached = read(model, ids[:, 6:8], past_key_values=cropped, ensemble_lambda=0.6).logits
    anew = read(model, ids[:, :8], use_cache=False, ensemble_lambda=0.6).logits[:, -2:]
    torch.testing.assert_close(cached, anew, rtol=0, atol=1e-9)
    after = read(model, ids[:, 9:11], past_key_values=cache, ensemble_lambda=0.6).logits
    history = layers_and_history(cache)[-1]
    assert (history.start, history.get_seq_length()) == (9, 2)
    # The first token has no history, the second has the first.
    plain = read(model, ids[:, :11], use_cache=False, ensemble_lambda=0.0).logits[:, -2:]
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


def looks(cache: Cache) -> dict:
    """Return what a caller can see of a cache and its layers."""
    if isinstance(cache, EncoderDecoderCache):
        return {"self": looks(cache.self_attention_cache), "cross": looks(cache.cross_attention_cache)}
    return {
        "sizes": (len(cache), cache.get_seq_length(), cache.get_max_length()),
        "kinds": (cache.is_compileable, cache.is_croppable, cache.is_initialized, cache.is_sliding),
        "states": [
            {name: value.tolist() for name, value in vars(layer).items() if isinstance(value, torch.Tensor)}
            for layer in cache.layers
        ],
    }


@pytest.mark.parametrize("kind", CACHES)
@torch.no_grad()
def test_looks_like_the_backbones_cache(models, kind):
    name, make = CACHES[kind]
    model, caches = models[name], []
    for ensemble_lambda in (0.0, 0.6):
        cache = make(model.config)
        output = read(model, random_ids(2, 5), past_key_values=cache, ensemble_lambda=ensemble_lambda)
        assert output.past_key_values is cache
        caches.append(cache)
    plain, ensembled = caches
    assert len(layers_and_history(ensembled)) == len(layers_and_history(plain)) + 1 == len(ensembled) + 1
    assert looks(ensembled) == looks(plain)
    # Transformers' exporter finds the classes of layers by their names.
    for layer_class in map(type, layers_and_history(ensembled) if kind != "hybrid" else ()):
        assert vars(sys.modules[layer_class.__module__])[layer_class.__qualname__] is layer_class


@torch.no_grad()
def test_offloaded_and_moved(models, monkeypatch):
    cache, offloaded = DynamicCache(), []
    read(models["gpt2"], random_ids(2, 5), past_key_values=cache, ensemble_lambda=0.6)
    monkeypatch.setattr(NgramHistory, "offload", lambda layer: offloaded.append(layer))
    for index in range(len(cache)):
        cache.offload(index)
    carried = layers_and_history(cache)[-1]
    assert offloaded == [carried]
    # A device other than that of the CPU, which may be the only real one.
    moved = history_of(cache, 3, torch.device("meta"))
    assert moved is carried and moved.keys.device == moved.values.device == torch.device("meta")
