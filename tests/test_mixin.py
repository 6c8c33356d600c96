"""The mixin does not know GPT-2: another backbone is two short classes."""

import pytest
import torch
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)

from ngram_wdr_hf.configuration_wdr_ngram import NgramConfigMixin
from ngram_wdr_hf.modeling_wdr_ngram import NgramMixin

from .test_ensemble import cached_logits
from .tiny import VOCAB_SIZE, random_ids

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}


class NgramLlamaConfig(NgramConfigMixin, LlamaConfig):
    model_type = "ngram_llama"


class NgramLlama(NgramMixin, LlamaForCausalLM):
    config_class = NgramLlamaConfig


class NgramMistralConfig(NgramConfigMixin, MistralConfig):
    model_type = "ngram_mistral"


class NgramMistral(NgramMixin, MistralForCausalLM):
    config_class = NgramMistralConfig


BACKBONES = {
    "llama": (NgramLlama, NgramLlamaConfig, LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (NgramMistral, NgramMistralConfig, MistralForCausalLM, MistralConfig, {"sliding_window": 4}),
}


@pytest.fixture(params=BACKBONES)
def backbone(request):
    ours, config, stock, stock_config, fields = BACKBONES[request.param]

    def build(**ngram_fields):
        torch.manual_seed(0)
        return ours(config(**SIZES, **fields, **ngram_fields)).double().eval()

    def build_stock():
        torch.manual_seed(0)
        return stock(stock_config(**SIZES, **fields)).double().eval()

    return build, build_stock


@torch.no_grad()
def test_one_gram_is_the_stock_model(backbone):
    build, build_stock = backbone
    ours, stock, ids = build(ngram_size=1), build_stock(), random_ids(2, 10)
    assert torch.equal(ours(ids).logits, stock(ids).logits)
    torch.testing.assert_close(ours.train()(ids, labels=ids).loss, stock.train()(ids, labels=ids).loss.double())


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
@torch.no_grad()
def test_cached_equals_uncached(backbone, kind):
    model, ids = backbone[0](ensemble_lambda=0.4), random_ids(2, 12)
    uncached = model(ids, use_cache=False).logits
    for chunks in ([12], [1] * 12, [5, 1, 6]):
        cache = kind(config=model.config, **({"max_cache_len": 16} if kind is StaticCache else {}))
        torch.testing.assert_close(cached_logits(model, ids, chunks, cache), uncached)


def test_training_and_generation(backbone):
    model, ids = backbone[0](ensemble_lambda=0.4), random_ids(2, 8)
    beams = model.generate(ids, num_beams=3, max_new_tokens=6)
    assert torch.equal(beams, model.generate(ids, num_beams=3, max_new_tokens=6, use_cache=False))
    model.train()(ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
