"""Linear layers over a few tokens: the same results in another order of the factors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ngram_wdr_hf.decoding import few_tokens
from ngram_wdr_hf.decoding.few_tokens import MOST_TOKENS, FewTokenProducts, multiply
from tests.support.backbones import tiny_backbone
from tests.support.tiny import random_ids, tiny_model


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 2, 5), (2, 4, 5), (3, 3, 5), (0, 5), (1, 20, 5)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products(shape, has_bias):
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(shape), torch.randn(7, 5), torch.randn(7) if has_bias else None
    product = multiply(inputs, weight, bias)
    assert product.is_contiguous()
    torch.testing.assert_close(product, F.linear(inputs, weight, bias))


def test_other_types_are_left_alone():
    for dtype in (torch.float64, torch.bfloat16):
        inputs, weight = torch.randn(2, 5, dtype=dtype), torch.randn(7, 5, dtype=dtype)
        assert torch.equal(multiply(inputs, weight), F.linear(inputs, weight))
    # Autocast changes the inputs' type, and F.linear that of the weights.
    with torch.autocast("cpu", torch.bfloat16):
        inputs, weight = torch.randn(2, 5), torch.randn(7, 5)
        assert multiply(inputs, weight).dtype == F.linear(inputs, weight).dtype


@torch.no_grad()
def test_layers_of_a_model(monkeypatch):
    """Inside the context, all products with a few vectors are computed in the other order; afterwards, none is."""
    model = tiny_backbone("llama").float().eval()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    counts = []
    monkeypatch.setattr(torch, "mm", lambda *args, mm=torch.mm: counts.append(args[1].shape[1]) or mm(*args))
    ids = random_ids(1, MOST_TOKENS)
    for length in (1, 3, MOST_TOKENS):
        expected = model(ids[:, :length]).logits
        assert not counts
        with FewTokenProducts(model):
            actual = model(ids[:, :length]).logits
        num_layers = sum(isinstance(module, nn.Linear) for module in model.model.modules())
        # And the output embedding.
        assert counts == [max(length, 2)] * (num_layers + 1)
        counts.clear()
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not any("forward" in vars(module) for module in model.modules())


def test_wrapped_layers_keep_their_forward():
    model = tiny_backbone("llama").float()
    wrapped = model.lm_head.forward = lambda inputs: F.linear(inputs, model.lm_head.weight)
    with FewTokenProducts(model):
        assert model.lm_head.forward is wrapped and "forward" in vars(model.model.layers[0].mlp.up_proj)
    assert model.lm_head.forward is wrapped


def test_an_error_ends_the_context():
    model = tiny_backbone("llama").float()
    with pytest.raises(IndexError), FewTokenProducts(model):
        raise IndexError
    assert not any("forward" in vars(module) for module in model.modules())


def test_models_in_other_types_are_left_alone():
    assert not FewTokenProducts(tiny_model(torch.float64)).layers


def test_small_models_are_left_alone(monkeypatch):
    model = tiny_backbone("llama").float()
    monkeypatch.setattr(few_tokens, "CACHE_BYTES", model.get_memory_footprint())
    assert not FewTokenProducts(model).layers
    monkeypatch.setattr(few_tokens, "CACHE_BYTES", model.get_memory_footprint() - 1)
    assert FewTokenProducts(model).layers
