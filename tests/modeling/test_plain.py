"""N = 1 equals the stock model bit for bit, heads do not change the trunk, inputs and outputs are the backbone's."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from ngram_wdr_hf.modeling.base import OWN_ARGUMENTS
from tests.support.batches import VARIANTS, batches_of, fit, padded
from tests.support.errors import raises_naming
from tests.support.tiny import KINDS, MASKED, SEQ2SEQ, make, make_stock, model_of, random_ids, stock_twin
from tests.support.training import assert_same_gradients, gradients

NAMES = list(KINDS)
CAUSAL = ["gpt2", *SEQ2SEQ]


def seeded_model(name: str, **fields):
    """Return our model with its initial weights."""
    kind = KINDS[name]
    torch.manual_seed(0)
    return kind.ours(kind.ours.config_class(**{**kind.sizes, **fields})).eval()


# Weights that the stock class initializes twice.
INITIALIZED_TWICE = {
    "t5": ("shared.weight", "embed_tokens.weight", "lm_head.weight"),
    "modernbert": ("head.dense.weight",),
}


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_same_seed_gives_the_same_trunk(name, fields):
    """With N = 1 there is nothing else. Otherwise, each head has 2 d² + 2 d parameters."""
    one_gram, plain = seeded_model(name, ngram_size=1, **fields), make_stock(name, **fields)
    assert [key for key, _ in one_gram.named_parameters()] == [key for key, _ in plain.named_parameters()]
    assert list(one_gram.state_dict()) == list(plain.state_dict())
    model, trunk = seeded_model(name, ngram_size=4, **fields), plain.state_dict()
    twice = INITIALIZED_TWICE.get(name, ())
    for state in (one_gram.state_dict(), model.state_dict()):
        assert all(torch.equal(state[key], value) for key, value in trunk.items() if not key.endswith(twice))
    assert set(state) - set(trunk) == {key for key in state if key.startswith("ngram_heads.")}
    width = model.get_output_embeddings().weight.shape[1]
    assert len(model.ngram_heads) == 3
    for head in model.ngram_heads:
        assert sum(parameter.numel() for parameter in head.parameters()) == 2 * width**2 + 2 * width


CASES = [(*variant, batch) for variant in VARIANTS for batch in batches_of(variant[0]) if batch != "no labels at all"]


@pytest.mark.parametrize(("name", "fields", "batch"), CASES)
def test_one_gram_is_the_stock_model(name, fields, batch):
    ours = make(name, ngram_size=1, **fields)
    plain = stock_twin(ours, make_stock(name, **fields))
    is_alone, batch = batch == "one token", fit(batches_of(name)[batch], fields)
    ensemble = {} if name in MASKED else {"ensemble_lambda": 0.4}
    with torch.no_grad():
        assert torch.equal(ours(**batch, **ensemble).logits, plain(**batch).logits)
    if name == "gpt2" and is_alone:
        return  # the stock loss is NaN there
    # Only GPT-2 has Trainer's count of labels.
    for is_training, count in ((False, None), (True, None), (True, 7)):
        batch |= {"num_items_in_batch": count} if name == "gpt2" else {}
        loss, expected = ours.train(is_training)(**batch).loss, plain.train(is_training)(**batch).loss
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
        assert_same_gradients(gradients(ours, loss), gradients(plain, expected), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_other_output_fields_equal_the_stock_model(name):
    fields = {"attn_implementation": "eager"}
    ours = make(name, **fields)
    plain = stock_twin(ours, make_stock(name, **fields))
    batch = {**padded(name), "output_hidden_states": True, "output_attentions": True}
    if name == "gpt2":
        # For the stock class, labels after padding are targets like others.
        batch.pop("attention_mask")
        batch["labels"] = batch["input_ids"]
    output, expected = ours(**batch), plain(**batch)
    assert torch.equal(output.logits, expected.logits)
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(output.head_losses[0], expected.loss)
    # Only stock T5 returns a cache with labels, and only our BERT its empty cross-attentions.
    kept = set(expected) - ({"past_key_values"} if name in SEQ2SEQ else set())
    assert set(output) - {"cross_attentions"} == kept - {"cross_attentions"} | {"head_losses", "head_counts"}
    for key in kept - {"loss", "logits", "past_key_values"}:
        torch.testing.assert_close(output[key], expected[key], rtol=0, atol=0)
    as_tuple = ours(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and len(as_tuple) == len(output)
    for key in ("loss", "logits", "head_losses"):
        assert torch.equal(as_tuple[list(output).index(key)], output[key])


@pytest.mark.parametrize("name", NAMES)
def test_forward_takes_the_backbones_arguments(name):
    model, ids = make(name), random_ids(2, 5)
    ours, stock = (inspect.signature(forward).parameters for forward in (model.forward, KINDS[name].stock.forward))
    assert [key for key in ours if key not in OWN_ARGUMENTS] == [key for key in stock if key != "self"]
    assert all(ours[argument].default is None for argument in OWN_ARGUMENTS if argument in ours)
    names = list(ours)[:3]
    arguments = [ids if key.endswith("ids") and "type" not in key else None for key in names]
    by_name = {key: value for key, value in zip(names, arguments, strict=True) if value is not None}
    assert torch.equal(model(*arguments).logits, model(**by_name).logits)
    with raises_naming(TypeError, "input_ids"):
        model(ids, input_ids=ids)


@pytest.mark.filterwarnings("ignore:This backward pass trains")
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_the_outputs(name, ensemble_lambda):
    """The loss is made from the logits, and these from the hidden states and attentions of the same output."""
    fields = {} if name in MASKED else {"ensemble_lambda": ensemble_lambda}
    model, batch = model_of(name, attn_implementation="eager", **fields), dict(batches_of(name)["plain"])
    labels = batch["labels"]
    output = model(**batch, output_hidden_states=True, output_attentions=True)
    prefix = "decoder_" if name in SEQ2SEQ else ""
    states = [*output[f"{prefix}hidden_states"], *output[f"{prefix}attentions"]]
    if prefix:
        states += [*output.encoder_hidden_states, *output.encoder_attentions, *output.cross_attentions]
    for tensor in (output.logits, *states):
        tensor.retain_grad()
    output.loss.backward()
    leaf = output.logits.detach().requires_grad_()
    logits, labels = (leaf[:, :-1], labels[:, 1:]) if name == "gpt2" else (leaf, labels)
    F.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
    torch.testing.assert_close(output.logits.grad, leaf.grad)
    assert all(tensor.grad is not None and bool(tensor.grad.any()) for tensor in states)


@pytest.mark.parametrize("kept", [2, 9, torch.tensor([0, 5])], ids=["last", "all", "positions"])
@pytest.mark.parametrize("name", CAUSAL)
def test_logits_in_training_if_asked_for(name, kept, ensemble_lambda):
    model, batch = model_of(name, ensemble_lambda=ensemble_lambda), batches_of(name)["holes"]
    expected = model(**batch, logits_to_keep=kept).logits
    model.train()
    plain, output = model(**batch), model(**batch, logits_to_keep=kept)
    assert plain.logits is None
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.loss, plain.loss)
    torch.testing.assert_close(output.head_losses, plain.head_losses)
    if ensemble_lambda > 0:
        # A loss of the caller's own can use them.
        head_gradients = torch.autograd.grad(output.logits.sum(), list(model.ngram_heads.parameters()))
        assert all(gradient.any() for gradient in head_gradients)
