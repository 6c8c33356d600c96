"""Products of a few tokens: the same results in another order of the factors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ngram_wdr_hf.decoding import drafter
from ngram_wdr_hf.decoding.cpu_products import SEVERAL_THREADS, CpuProducts, linear
from tests.support.backbones import tiny_backbone
from tests.support.options import DRAFTS
from tests.support.side_by_side import generate
from tests.support.tiny import prompts, random_ids


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 2, 5), (2, 4, 5), (3, 3, 5), (0, 5), (1, 20, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products(shape, dtype):
    inputs, weight = torch.randn(shape, dtype=dtype), torch.randn(7, 5, dtype=dtype)
    for bias in (None, torch.randn(7, dtype=dtype)):
        product, expected = linear(inputs, weight, bias), F.linear(inputs, weight, bias)
        assert product.is_contiguous()
        # Other types are left alone.
        torch.testing.assert_close(product, expected, **({} if dtype == torch.float32 else {"rtol": 0, "atol": 0}))


@pytest.fixture
def vectors(monkeypatch) -> list[int]:
    """The number of vectors in each product in the other order."""
    counts = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "mm", lambda *args, mm=torch.mm: counts.append(args[1].shape[1]) or mm(*args))
    return counts


@torch.no_grad()
def test_layers_of_a_model(vectors):
    """Inside the context, all products with a few vectors are computed in the other order; afterwards, none is."""
    model, ids = tiny_backbone("llama").float().eval(), random_ids(1, SEVERAL_THREADS[-1])
    num_layers = sum(isinstance(module, nn.Linear) for module in model.model.modules())
    for length in (1, 3, SEVERAL_THREADS[-1]):
        expected = model(ids[:, :length]).logits
        assert not vectors
        with CpuProducts():
            actual = model(ids[:, :length]).logits
        # And the output embedding.
        assert vectors == [max(length, 2)] * (num_layers + 1)
        vectors.clear()
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_numbers_of_vectors():
    """In one thread, a single vector is left to PyTorch, and so are more than a few."""
    with pytest.MonkeyPatch.context() as patch:
        for threads, expected in ((1, [2, 3, 4, 5]), (2, [1, 2, 3, 4, 5, 6, 7, 8])):
            patch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            assert [count for count in range(20) if CpuProducts.pay_for(count)] == expected


def test_switch(vectors, monkeypatch):
    """Drafting on a CPU uses them, unless the model is small or `cpu_products=False`."""
    model = tiny_backbone("llama").float()
    for options, is_used in (({"use_mtp": False}, False), ({**DRAFTS, "cpu_products": False}, False), (DRAFTS, True)):
        generate(model, prompts(1), **options)
        assert bool(vectors) == is_used
    vectors.clear()
    monkeypatch.setattr(drafter, "CACHE_BYTES", model.get_memory_footprint())
    generate(model, prompts(1), **DRAFTS)
    assert not vectors
