"""The bag-of-words loss, against a slow reference in float64."""

import pytest
import torch

from ngram_wdr_hf.method.bag_of_words import bag_of_words_nll
from tests.support import reference
from tests.support.batches import TOLERANCE, text_of
from tests.support.batches import TRANSLATIONS as BATCHES
from tests.support.errors import raises_naming
from tests.support.tiny import SEQ2SEQ, tiny_seq2seq
from tests.support.training import assert_same_gradients, gradients

# Repeated tokens, missing targets at both ends, a single token, and no target at all.
TARGETS = torch.tensor(
    [
        [3, 8, 3, 0, 10],
        [5, 5, 5, -100, -100],
        [-100, 2, -100, 7, 2],
        [-100, -100, 9, -100, -100],
        [-100, -100, -100, -100, -100],
    ]
)


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    """Hidden states, output embedding and bias."""
    shapes = [(5, 5, 6), (11, 6), (11,)]
    return [(0.5 * torch.randn(shape, dtype=torch.float64)).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4)])
def test_values_and_gradients(tensors, rows, has_bias):
    hidden, weight, bias = tensors if has_bias else [*tensors[:2], None]
    inputs = tensors if has_bias else tensors[:2]
    nll = bag_of_words_nll(hidden[rows], TARGETS[rows], weight, bias)
    logits = hidden[rows] @ weight.T
    expected = reference.bag_of_words_nll(logits + bias if has_bias else logits, TARGETS[rows])
    torch.testing.assert_close(nll, expected)
    for grad, wanted in zip(torch.autograd.grad(nll, inputs), torch.autograd.grad(expected, inputs), strict=True):
        assert wanted.any()
        torch.testing.assert_close(grad, wanted)


def test_sentence_without_targets_has_no_loss(tensors):
    nll = bag_of_words_nll(tensors[0], torch.full_like(TARGETS, -100), *tensors[1:])
    assert nll.item() == 0.0
    assert not any(grad.any() for grad in torch.autograd.grad(nll, tensors))


def test_large_scores_stay_finite(tensors):
    hidden, weight, _ = (1000 * tensor.detach().float() for tensor in tensors)
    hidden.requires_grad_()
    nll = bag_of_words_nll(hidden, TARGETS, weight)
    assert nll.isfinite() and nll > 1000
    assert torch.autograd.grad(nll, hidden)[0].isfinite().all()


@pytest.mark.parametrize("batch", ["ragged", "holes", "left-padded decoder"])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_weighted_bag_of_words_loss_is_added(name, size, batch):
    fields = {"ngram_size": size, "label_smoothing": 0.1}
    model = tiny_seq2seq(name, torch.float64, bow_loss_weight=0.5, **fields).train()
    without = tiny_seq2seq(name, torch.float64, **fields).train()
    batch = BATCHES[batch]
    hidden = reference.hidden_states(model, **text_of(name, batch))
    nll = reference.bag_of_words_nll(reference.logits_of(model, hidden), batch["labels"])
    for count in (None, 7, torch.tensor(11)):
        output, plain = model(**batch, num_items_in_batch=count), without(**batch, num_items_in_batch=count)
        bow_loss = nll / ((batch["labels"] != -100).sum() if count is None else count)
        torch.testing.assert_close(output.bow_loss, bow_loss, **TOLERANCE[name])
        torch.testing.assert_close(output.loss, plain.loss + 0.5 * bow_loss, **TOLERANCE[name])
        assert torch.equal(output.head_losses, plain.head_losses)
        assert not output.bow_loss.requires_grad and output.logits is None
    bow_grads = gradients(model, bow_loss)
    plain_grads = gradients(without, plain.loss)
    wanted = {key: grad + 0.5 * bow_grads[key] for key, grad in plain_grads.items()}
    assert bow_grads["shared.weight" if name == "t5" else "model.shared.weight"].any()
    assert_same_gradients(gradients(model, output.loss), wanted, **TOLERANCE[name])


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_labels_at_padding_are_ignored(name):
    model, batch = tiny_seq2seq(name, torch.float64, bow_loss_weight=1.0).train(), BATCHES["left-padded decoder"]
    everywhere = batch["labels"].masked_fill(batch["labels"] == -100, 5)
    assert (everywhere != batch["labels"]).any()
    assert torch.equal(model(**batch | {"labels": everywhere}).bow_loss, model(**batch).bow_loss)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_accumulated_gradients_equal_those_of_the_full_batch(name):
    model, batch = tiny_seq2seq(name, torch.float64, bow_loss_weight=0.5).train(), BATCHES["ragged"]
    full = model(**batch)
    count = (batch["labels"] != -100).sum()
    halves = [
        model(**{key: value[i : i + 1] for key, value in batch.items()}, num_items_in_batch=count) for i in (0, 1)
    ]
    torch.testing.assert_close(halves[0].bow_loss + halves[1].bow_loss, full.bow_loss)
    first, second = (gradients(model, half.loss) for half in halves)
    assert_same_gradients({key: first[key] + second[key] for key in first}, gradients(model, full.loss))


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_no_bag_of_words_loss_in_evaluation_or_with_weight_zero(name):
    model, without, batch = tiny_seq2seq(name, bow_loss_weight=0.5), tiny_seq2seq(name), BATCHES["ragged"]
    for options in ({}, {"ensemble_lambda": 0.4}, {"ensemble_lambda": [0.0, 0.4]}):
        output = model(**batch, **options)
        assert output.bow_loss is None
        assert torch.equal(output.loss, without(**batch, **options).loss)
    assert without.train()(**batch).bow_loss is None
    assert model.train()(**batch).bow_loss > 0


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_batch_without_targets_has_zero_loss(name):
    model, batch = tiny_seq2seq(name, bow_loss_weight=0.5).train(), BATCHES["no labels at all"]
    output = model(**batch)
    assert output.loss.item() == output.bow_loss.item() == 0.0
    output.loss.backward()
    assert all(value.grad.isfinite().all() for value in model.parameters() if value.requires_grad)


@pytest.mark.parametrize("weight", [-0.1, float("inf"), float("nan"), "0.5", None, True])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_bad_weights(name, weight):
    with raises_naming(ValueError, "`bow_loss_weight`", repr(weight)):
        SEQ2SEQ[name].ours.config_class(bow_loss_weight=weight)
