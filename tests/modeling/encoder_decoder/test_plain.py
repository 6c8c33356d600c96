"""Encoder-decoder models with N = 1 equal the stock models, and heads do not change the trunk."""

import inspect

import pytest
import torch

from ngram_wdr_hf.modeling.generation import ENSEMBLE_ARGUMENTS
from tests.support import reference
from tests.support.errors import raises_naming
from tests.support.tiny import SEQ2SEQ, plain_seq2seq, random_ids, tiny_seq2seq
from tests.support.training import assert_same_gradients, gradients
from tests.support.translation import BATCHES, NAMES, VARIANTS, fit, shift_right


def pair(name, fields):
    """Return the model with N = 1 and the stock model, with the same weights."""
    ours, plain = tiny_seq2seq(name, ngram_size=1, **fields), plain_seq2seq(name, **fields)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def is_initialised_twice(name: str, key: str) -> bool:
    """Return whether the stock model initialises a weight twice, as T5 does with its shared embedding."""
    return name == "t5" and key.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight"))


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_one_gram_has_the_stock_parameters(name, fields):
    model_class, config_class, _, _, sizes = SEQ2SEQ[name]
    torch.manual_seed(0)
    ours, plain = model_class(config_class(**{**sizes, **fields, "ngram_size": 1})), plain_seq2seq(name, **fields)
    assert [key for key, _ in ours.named_parameters()] == [key for key, _ in plain.named_parameters()]
    state, expected = ours.state_dict(), plain.state_dict()
    assert list(state) == list(expected)
    assert all(
        torch.equal(state[key], value) for key, value in expected.items() if not is_initialised_twice(name, key)
    )


@pytest.mark.parametrize("name", NAMES)
def test_heads_do_not_change_the_trunk(name):
    """The same seed gives the same trunk, with heads or without, and each head has 2 d² + 2 d parameters."""
    model_class, config_class, _, _, sizes = SEQ2SEQ[name]
    torch.manual_seed(0)
    model = model_class(config_class(**sizes, ngram_size=4))
    trunk, state = plain_seq2seq(name).state_dict(), model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in trunk.items() if not is_initialised_twice(name, key))
    width = model.config.d_model
    assert len(model.ngram_heads) == 3
    for head in model.ngram_heads:
        assert sum(parameter.numel() for parameter in head.parameters()) == 2 * width**2 + 2 * width
    assert set(state) - set(trunk) == {key for key in state if key.startswith("ngram_heads.")}


@pytest.mark.parametrize("batch", ["ragged", "left-padded decoder", "padding inside, labels everywhere", "one token"])
@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_one_gram_is_the_stock_model(name, fields, batch):
    ours, plain = pair(name, fields)
    batch = fit(BATCHES[batch], fields)
    with torch.no_grad():
        output, expected = ours(**batch, ensemble_lambda=0.4), plain(**batch)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-6, atol=1e-6)
    loss, expected_loss = ours.train()(**batch).loss, plain.train()(**batch).loss
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    assert_same_gradients(gradients(ours, loss), gradients(plain, expected_loss), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_other_output_fields_equal_the_stock_model(name):
    fields = {"attn_implementation": "eager"}
    ours, plain = tiny_seq2seq(name, **fields), plain_seq2seq(name, **fields)
    plain.load_state_dict(ours.state_dict(), strict=False)
    batch = {**BATCHES["ragged"], "output_hidden_states": True, "output_attentions": True}
    output, expected = ours(**batch), plain(**batch)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss)
    # Only stock T5 returns a cache with labels.
    kept = set(expected) - {"past_key_values"}
    assert set(output) == kept | {"head_losses", "head_counts"}
    for key in kept - {"loss", "logits"}:
        torch.testing.assert_close(output[key], expected[key], rtol=0, atol=0)
    as_tuple = ours(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and len(as_tuple) == len(output)
    assert torch.equal(as_tuple[0], output.loss) and torch.equal(as_tuple[1], output.logits)


@pytest.mark.parametrize("name", NAMES)
def test_forward_takes_the_backbones_arguments(name):
    model = tiny_seq2seq(name)
    ours, stock = (inspect.signature(forward).parameters for forward in (model.forward, SEQ2SEQ[name][2].forward))
    assert [key for key in ours if key not in ENSEMBLE_ARGUMENTS] == [key for key in stock if key != "self"]
    assert all(ours[argument].default is None for argument in ENSEMBLE_ARGUMENTS)
    source, decoder_ids = random_ids(2, 5), random_ids(2, 4, seed=1)
    by_position = model(source, torch.ones_like(source), decoder_ids)
    assert torch.equal(by_position.logits, model(source, decoder_input_ids=decoder_ids).logits)
    with raises_naming(TypeError, "input_ids"):
        model(source, input_ids=source)
    with raises_naming(TypeError, "`forward`", "21"):
        model(source, *[None] * 20)


@torch.no_grad()
def test_bart_makes_decoder_ids_from_its_input():
    ours, plain = pair("bart", {})
    source = random_ids(2, 6)
    assert torch.equal(ours(source).logits, plain(source).logits)
    model = tiny_seq2seq("bart", torch.float64)
    expected = reference.ensembled_logits(model, shift_right(source), 0.4, encoder_ids=source)
    torch.testing.assert_close(model(source, ensemble_lambda=0.4).logits, expected)
