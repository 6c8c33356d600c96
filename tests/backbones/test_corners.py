"""Corner cases of backbones: static caches, offloaded weights."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from ngram_wdr_hf import WDRNgramLlamaConfig, WDRNgramLlamaForCausalLM, with_ngram_heads
from tests.support.backbones import tiny_backbone
from tests.support.errors import raises_naming
from tests.support.tiny import LLAMA_SIZES, left_pad, random_ids, tiny_model


@pytest.mark.parametrize("length", [3, 8])
@torch.no_grad()
def test_static_cache_with_sliding_window(length):
    """The mask is as wide as the window, and a token's column is not its position."""
    model = tiny_backbone("mistral", ensemble_lambda=0.6, ngram_size=4)
    ids, mask = left_pad([random_ids(1, length)[0], random_ids(1, length + 3, seed=1)[0]])
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    expected = model.generate(ids, attention_mask=mask, use_cache=False, **options)
    found = model.generate(ids, attention_mask=mask, cache_implementation="static", **options)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits))


@torch.no_grad()
def test_first_step_with_static_cache_compiles_in_one_graph():
    model, ids = tiny_model(ensemble_lambda=0.4), random_ids(1, 6)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    caches = [StaticCache(config=model.config, max_cache_len=16) for _ in range(2)]
    found, expected = (
        step(ids, past_key_values=cache, use_cache=True).logits
        for step, cache in zip((compiled, model), caches, strict=True)
    )
    torch.testing.assert_close(found, expected)


def test_offloaded_weights():
    model, ids = WDRNgramLlamaForCausalLM(WDRNgramLlamaConfig(**LLAMA_SIZES)).eval(), random_ids(1, 5)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.to("meta"), requires_grad=False)
    with raises_naming(ValueError, "`WDRNgramLlamaForCausalLM`", "output embedding", "`ensemble_lambda=0`"):
        model(ids, labels=ids)
    with torch.device("meta"):
        plain = LlamaForCausalLM(LlamaConfig(**LLAMA_SIZES))
    with raises_naming(ValueError, "`LlamaForCausalLM`", "offloaded"):
        with_ngram_heads(plain)
