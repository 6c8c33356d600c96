"""N = 1 equals stock GPT-2, and heads do not change the trunk."""

import inspect

import pytest
import torch
from transformers import GPT2LMHeadModel

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from ngram_wdr_hf.modeling.generation import ENSEMBLE_ARGUMENTS
from tests.support.batches import BATCHES
from tests.support.errors import raises_naming
from tests.support.tiny import SIZES, left_pad, plain_model, random_ids, tiny_model
from tests.support.training import gradients


@pytest.fixture
def pair():
    """The model with N = 1 and the stock model, from the same seed."""
    return seeded_model(ngram_size=1), plain_model()


def seeded_model(**fields) -> WDRNgramGPT2LMHeadModel:
    torch.manual_seed(0)
    return WDRNgramGPT2LMHeadModel(WDRNgramConfig(**SIZES, **fields)).eval()


def test_same_parameters(pair):
    ours, plain = pair
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in plain.named_parameters()]
    for parameter, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter, other)


def test_heads_do_not_change_the_trunk():
    """The same seed gives the same trunk, with heads or without, and each head has 2 d² + 2 d parameters."""
    model = seeded_model(ngram_size=4)
    trunk = plain_model().state_dict()
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in trunk.items())
    width = model.config.n_embd
    for head in model.ngram_heads:
        assert sum(parameter.numel() for parameter in head.parameters()) == 2 * width**2 + 2 * width
    assert set(state) - set(trunk) == {name for name in state if name.startswith("ngram_heads.")}


@pytest.mark.parametrize("name", BATCHES)
def test_same_logits_loss_and_gradients(pair, name):
    ours, plain = pair
    batch = dict(BATCHES[name])
    labels = batch.pop("labels")
    assert torch.equal(ours(**batch).logits, plain(**batch).logits)
    assert torch.equal(ours(**batch, ensemble_lambda=0.4).logits, plain(**batch).logits)
    if name in ("no labels at all", "one token"):
        return  # the stock loss is NaN there
    for mode in (True, False):
        ours.train(mode)
        plain.train(mode)
        for count in (None, 7):
            loss = ours(**batch, labels=labels, num_items_in_batch=count).loss
            expected = plain(**batch, labels=labels, num_items_in_batch=count).loss
            torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
            actual, wanted = gradients(ours, loss), gradients(plain, expected)
            for parameter in wanted:
                torch.testing.assert_close(actual[parameter], wanted[parameter], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}, {"cache_implementation": "static"}])
def test_same_generation(pair, options):
    ids, mask = left_pad([random_ids(1, 6)[0], random_ids(1, 2, seed=1)[0]])
    outputs = []
    for model in pair:
        torch.manual_seed(1)
        outputs.append(
            model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=10,
                output_logits=True,
                return_dict_in_generate=True,
                **options,
            )
        )
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert all(torch.equal(a, b) for a, b in zip(outputs[0].logits, outputs[1].logits, strict=True))


def test_heads_do_not_change_decoding_with_lambda_zero():
    ours, plain = tiny_model(), plain_model()
    plain.load_state_dict(ours.state_dict(), strict=False)
    ids = random_ids(2, 6)
    assert torch.equal(ours(ids).logits, plain(ids).logits)
    cache = ours.generate(ids, max_new_tokens=5, return_dict_in_generate=True).past_key_values
    assert len(cache.layers) == ours.config.n_layer


def test_forward_takes_the_backbones_arguments():
    ours = inspect.signature(tiny_model().forward).parameters
    stock = inspect.signature(GPT2LMHeadModel.forward).parameters
    assert [name for name in ours if name not in ENSEMBLE_ARGUMENTS] == [name for name in stock if name != "self"]
    assert all(ours[argument].default is None for argument in ENSEMBLE_ARGUMENTS)
    ids = random_ids(1, 5)
    model = tiny_model()
    assert torch.equal(model(ids, None, torch.ones_like(ids)).logits, model(ids).logits)
    with raises_naming(TypeError, "input_ids"):
        model(ids, input_ids=ids)
    with raises_naming(TypeError, "`forward`", "21"):
        model(ids, *[None] * 20)


@pytest.mark.parametrize("kept", [0, 2])
def test_nothing_to_add(monkeypatch, kept):
    """Without labels and ensemble, a model with heads runs its backbone's own forward."""
    model, plain = seeded_model(ngram_size=3), plain_model()
    calls, forward = [], GPT2LMHeadModel.forward
    spy = lambda self, **inputs: calls.append(self) or forward(self, **inputs)  # noqa: E731
    monkeypatch.setattr(type(model), "ngram_plain_forward", spy)
    ids = random_ids(2, 6)
    output = model(ids, ensemble_lambda=0, logits_to_keep=kept)
    assert calls == [model]
    assert torch.equal(output.logits, plain(ids, logits_to_keep=kept).logits)
    assert output.past_key_values.get_seq_length() == 6
    assert isinstance(model(ids, ensemble_lambda=0, return_dict=False), tuple)
    calls.clear()
    model(ids, ensemble_lambda=0.4), model(ids, labels=ids), model(ids, return_last_hidden_state=True)
    assert not calls
    with raises_naming(ValueError, "input_ids", f"0 to {model.config.vocab_size - 1}"):
        model(ids + 100, ensemble_lambda=0)
