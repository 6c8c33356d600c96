"""Gradient diversity against its definition."""

import gc
import math
import random
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ngram_wdr_hf.data.errors import Unavailable
from ngram_wdr_hf.evaluation.gradient_diversity import gradient_diversity
from tests.support import reference
from tests.support.batches import DROPOUT, padded_batch
from tests.support.errors import raises_naming
from tests.support.reformer import tiny_reformer
from tests.support.tiny import VOCAB_SIZE, plain_model, plain_seq2seq, random_ids, tiny_model, tiny_seq2seq


def rows_of(batch) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor[i : i + 1] for name, tensor in batch.items()} for i in range(len(batch["labels"]))]


def by_row(model, losses: Iterable[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of separate backward passes, by name."""
    gradients = []
    for loss in losses:
        model.zero_grad()
        # The reference loss of a row without targets is a constant.
        if loss.requires_grad:
            loss.backward()
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        gradients.append({name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in weights.items()})
    model.zero_grad()
    return gradients


def definition(gradients: list[dict[str, torch.Tensor]], *prefixes: str) -> float:
    """Compute the second form of the paper's equation, from all inner products of row gradients."""
    names = [name for name in gradients[0] if name.startswith(prefixes or "")]
    flat = torch.stack([torch.cat([row[name].flatten() for name in names]) for row in gradients])
    products = flat @ flat.T
    return (products.diagonal().sum() / products.sum()).item()


@pytest.mark.parametrize(
    "fields",
    [{}, {"ngram_target": "simple", "label_smoothing": 0.1}, {"tie_word_embeddings": False}, {"ngram_size": 1}],
    ids=str,
)
def test_causal_models(fields):
    # λ is for evaluation and must have no effect.
    model = tiny_model(torch.float64, **{"ngram_size": 3, **DROPOUT, "ensemble_lambda": 0.5, **fields})
    batch = padded_batch()
    expected = by_row(model, (reference.training_loss(model, **row)[0] for row in rows_of(batch)))
    assert [any(gradient.any() for gradient in row.values()) for row in expected] == [1, 1, 0, 0, 1, 1]
    model.train()
    assert gradient_diversity(model, batch) == pytest.approx(definition(expected))
    for name in ("transformer.h.1", "transformer.ln_f.bias", *["ngram_heads"] * bool(model.ngram_heads)):
        assert gradient_diversity(model, batch, name) == pytest.approx(definition(expected, name))
    # The output embedding may be tied to the input embedding.
    output = "lm_head" if "tie_word_embeddings" in fields else "transformer.wte"
    both = definition(expected, output, "transformer.h.0")
    for names in (["lm_head", "transformer.h.0"], ["lm_head.weight", "transformer.h.0", output]):
        assert gradient_diversity(model, batch, names) == pytest.approx(both)
    model.transformer.h.requires_grad_(False)
    frozen = [{name: value for name, value in row.items() if "transformer.h." not in name} for row in expected]
    assert gradient_diversity(model, batch) == pytest.approx(definition(frozen))


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_encoder_decoder_models(name):
    model = tiny_seq2seq(name, torch.float64, ngram_size=3, dropout=0.5, dropout_rate=0.5)
    batch = {"input_ids": random_ids(4, 7, seed=1), "decoder_input_ids": random_ids(4, 6, seed=2)}
    batch |= {"attention_mask": torch.ones(4, 7).long(), "labels": random_ids(4, 6, seed=3)}
    batch["attention_mask"][1, 5:] = 0
    batch["labels"][2, 3:] = -100
    names = ("input_ids", "decoder_input_ids", "labels", "attention_mask")
    losses = (reference.translation_loss(model, *(row[name] for name in names))[0] for row in rows_of(batch))
    expected = by_row(model, losses)
    assert gradient_diversity(model.train(), batch) == pytest.approx(definition(expected))


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_stock_models(name):
    model = (
        plain_model(torch.float64, **DROPOUT) if name == "gpt2" else plain_seq2seq(name, torch.float64, dropout=0.5)
    )
    batch = padded_batch() | ({} if name == "gpt2" else {"decoder_input_ids": random_ids(6, 9, seed=1)})
    expected = by_row(model.eval(), (model(**row).loss for row in rows_of(batch)))
    # Without targets, their loss is NaN.
    assert model(**rows_of(batch)[2]).loss.isnan()
    assert gradient_diversity(model.train(), batch) == pytest.approx(definition(expected))


@pytest.mark.parametrize("layers", ["local", "lsh"])
def test_reformer(layers):
    """Reformer layers set their gradients themselves and run backward in training mode only."""
    model, ids = tiny_reformer(layers, ngram_size=3).train(), random_ids(3, 24)
    expected = by_row(model, (model(row[None], labels=row[None]).loss for row in ids))
    model = tiny_reformer(layers, ngram_size=3, hidden_dropout_prob=0.5)
    assert gradient_diversity(model, {"input_ids": ids, "labels": ids}) == pytest.approx(definition(expected))


def test_adapters():
    """A model wrapped by PEFT still uses its training loss."""
    settings = LoraConfig(
        target_modules=["c_attn"], lora_dropout=0.5, modules_to_save=["ngram_heads.0"], fan_in_fan_out=True
    )
    model = get_peft_model(tiny_model(ngram_size=2, **DROPOUT), settings).double().eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    model.get_base_model().training = True
    expected = by_row(model, (model(**row).loss for row in rows_of(padded_batch())))
    assert any("ngram_heads" in name for name in expected[0]) and any("lora_A" in name for name in expected[0])
    assert gradient_diversity(model.eval(), padded_batch()) == pytest.approx(definition(expected))


def test_packed_documents():
    """As in training, without a cache, attention separates packed documents."""
    model, ids = tiny_model(torch.float64), random_ids(3, 8)
    batch = {"input_ids": ids, "position_ids": torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]).expand(3, 8), "labels": ids}
    model.training = True
    expected = by_row(model, (model(**row, use_cache=False).loss for row in rows_of(batch)))
    assert gradient_diversity(model, batch) == pytest.approx(definition(expected))


class Pull(nn.Module):
    """A model whose gradient is its input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, labels):
        return {"loss": (labels * self.weight).sum()}


@pytest.mark.parametrize(
    ("pulls", "expected"),
    [
        ([[1, 2, 3]] * 7, 1 / 7),
        ([[1, 2, 3]], 1),
        # Orthogonal, with different lengths.
        ([[1, 0, 0], [0, 20, 0], [0, 0, 3]], 1),
        ([[3, 0, 0], [-1, 0, 0]], 10 / 4),
        ([[1, 1, 0], [1, 0, 0], [0, 0, 0]], 3 / 5),
        ([[1, 2, 3], [-1, -2, -3]], math.inf),
        ([[1, math.nan, 0], [1, 0, 0]], math.nan),
    ],
)
def test_by_hand(pulls, expected):
    value = gradient_diversity(Pull(), {"labels": torch.tensor(pulls, dtype=torch.float32)})
    assert value == pytest.approx(expected, nan_ok=True)


def test_half_precision():
    """A sum in bfloat16 would stop growing at 256 terms."""
    value = gradient_diversity(Pull().bfloat16(), {"labels": torch.ones(300, 3, dtype=torch.bfloat16)})
    assert value * 300 == pytest.approx(1, rel=1e-6)


def random_states() -> list:
    return [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("is_bad", [False, True])
def test_nothing_else_changes(is_bad):
    model, batch = tiny_model(**DROPOUT).train(), padded_batch()
    # Unusual modes and gradients, to see that they are restored.
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    for parameter in model.transformer.parameters():
        parameter.grad = torch.randn_like(parameter)
    kept = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    states = random_states()
    if is_bad:
        batch["labels"][4, 1] = VOCAB_SIZE
        with raises_naming(ValueError, "labels"):
            gradient_diversity(model, batch)
    else:
        with torch.no_grad():
            assert gradient_diversity(model, batch) == gradient_diversity(model, batch)
    assert modes == [module.training for module in model.modules()] and random_states() == states
    for parameter, (gradient, value) in zip(model.parameters(), kept, strict=True):
        assert parameter.grad is gradient and (gradient is None or torch.equal(gradient, value))


def test_memory_does_not_grow_with_the_batch():
    """At each row, only one gradient sum of the earlier rows exists."""
    # No other test has tensors of this shape.
    model, counts = tiny_model(vocab_size=VOCAB_SIZE + 4), []
    shape = model.transformer.wte.weight.shape

    def count(*_):
        counts.append(sum(type(thing) is torch.Tensor and thing.shape == shape for thing in gc.get_objects()))

    model.register_forward_pre_hook(count)
    gradient_diversity(model, {"input_ids": random_ids(3, 9), "labels": random_ids(3, 9)})
    assert counts == [1] * 3


def test_parameters_without_gradient():
    model, batch = tiny_model(), padded_batch()
    # A prefix of a name does not match.
    for name in ("transformer.h.3", "transformer.h.1.ln"):
        with raises_naming(ValueError, "`parameters`", repr(name)):
            gradient_diversity(model, batch, ["transformer.h.1", name])
    model.ngram_heads.requires_grad_(False)
    with raises_naming(ValueError, "`parameters`", "'ngram_heads'"):
        gradient_diversity(model, batch, "ngram_heads")
    with raises_naming(Unavailable, "`batch`", "-100"):
        gradient_diversity(model, {**batch, "labels": torch.full_like(batch["labels"], -100)})
    with raises_naming(Unavailable, "`batch`", "`parameters`"):
        gradient_diversity(Pull(), {"labels": torch.ones(2, 3)}, "unused")
