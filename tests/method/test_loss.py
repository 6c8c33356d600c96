"""The training loss and all its gradients, against the slow reference in float64."""

import pytest
import torch
import torch.nn.functional as F

from ngram_wdr_hf.method import loss as loss_module
from ngram_wdr_hf.method.heads import NgramPredictions
from ngram_wdr_hf.method.logits import LogitLayer
from ngram_wdr_hf.method.plain_loss import plain_ngram_loss
from tests.support import reference
from tests.support.batches import BATCHES
from tests.support.errors import raises_naming
from tests.support.tiny import VOCAB_SIZE, left_pad, random_ids, right_pad, tiny_model
from tests.support.training import LargestTensor, gradients

SIZES = [1, 2, 3, 4, 5]
TARGETS = ["wdr", "simple"]


def assert_loss_matches(model, batch, num_items=None):
    model.train()
    output = model(**batch, num_items_in_batch=num_items)
    expected, expected_nlls = reference.training_loss(model, **batch, num_items=num_items)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected, check_dtype=False)
    torch.testing.assert_close(output.head_losses, expected_nlls, check_dtype=False)
    assert not output.head_losses.requires_grad
    actual, wanted = gradients(model, output.loss), gradients(model, expected + 0 * model.lm_head.weight.sum())
    for name in wanted:
        torch.testing.assert_close(actual[name], wanted[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", SIZES)
def test_loss_and_gradients(size, target, name):
    assert_loss_matches(tiny_model(torch.float64, ngram_size=size, ngram_target=target), BATCHES[name])


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("target", TARGETS)
def test_plain_loss(target, size):
    """What a reader reads is what the model computes in chunks, gradients included."""
    model, ids = tiny_model(torch.float64, ngram_size=size, ngram_target=target).train(), random_ids(2, 9)
    hidden_states = reference.hidden_states(model, ids)
    expected = plain_ngram_loss(hidden_states, ids, model.ngram_heads, model.lm_head.weight, target)
    loss = model(ids, labels=ids).loss
    torch.testing.assert_close(loss, expected)
    actual, wanted = gradients(model, loss), gradients(model, expected)
    for name in wanted:
        torch.testing.assert_close(actual[name], wanted[name])


@pytest.mark.parametrize("name", ["plain", "holes", "left padding", "shorter than N"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [1, 3])
def test_label_smoothing(size, tied, name):
    model = tiny_model(torch.float64, ngram_size=size, label_smoothing=0.2, tie_word_embeddings=tied)
    assert_loss_matches(model, BATCHES[name])


@pytest.mark.parametrize("num_items", [7, torch.tensor(11)])
def test_num_items_divides_the_loss_of_every_depth(num_items):
    assert_loss_matches(tiny_model(torch.float64, label_smoothing=0.1), BATCHES["holes"], num_items)


@pytest.mark.parametrize("target", TARGETS)
def test_shift_labels_equal_shifted_labels(target):
    batch = BATCHES["holes"]
    model = tiny_model(torch.float64, ngram_target=target).train()
    shifted = F.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    by_labels = model(**batch)
    by_shift = model(input_ids=batch["input_ids"], labels=torch.zeros_like(shifted), shift_labels=shifted)
    torch.testing.assert_close(by_shift.loss, by_labels.loss)
    torch.testing.assert_close(by_shift.head_losses, by_labels.head_losses)


def test_shift_labels_include_the_token_after_the_row():
    """A shard of a longer row has a target after its last token, at every depth."""
    ids = random_ids(1, 8)
    model = tiny_model(torch.float64).train()
    shard = model(input_ids=ids[:, :7], shift_labels=ids[:, 1:])
    full = model(input_ids=ids, labels=ids)
    torch.testing.assert_close(shard.loss, full.loss)
    torch.testing.assert_close(shard.head_losses, full.head_losses)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("is_training", [True, False])
def test_shift_labels_of_padded_rows_equal_those_of_separate_rows(size, is_training):
    """The target after a row's last token counts in every row, not only in the longest one."""
    rows = [random_ids(1, length, seed=length)[0] for length in (9, 6, 4)]
    model = tiny_model(torch.float64, ngram_size=size, ensemble_lambda=0.3).train(is_training)
    apart = [model(row[None, :-1], shift_labels=row[None, 1:], num_items_in_batch=1).loss for row in rows]
    for pad in (right_pad, left_pad):
        ids, mask = pad([row[:-1] for row in rows])
        targets = pad([row[1:] for row in rows], pad_token_id=-100)[0]
        padded = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), shift_labels=targets)
        count = (targets != -100).sum()
        torch.testing.assert_close(padded.loss * count, sum(apart))


def test_packed_documents_equal_separate_documents():
    ids, positions = BATCHES["packed"]["input_ids"][:1], BATCHES["packed"]["position_ids"][:1]
    model = tiny_model(torch.float64).train()
    apart = [
        model(input_ids=document, labels=document, num_items_in_batch=1).loss for document in ids.split([4, 2, 3], 1)
    ]
    packed = model(input_ids=ids, labels=ids, position_ids=positions, use_cache=False, num_items_in_batch=1)
    torch.testing.assert_close(packed.loss, sum(apart))


def test_padded_rows_equal_separate_rows():
    rows = [random_ids(1, 9)[0], random_ids(1, 5, seed=1)[0]]
    ids, mask = left_pad(rows)
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    model = tiny_model(torch.float64).train()
    apart = sum(model(input_ids=row[None], labels=row[None], num_items_in_batch=1).loss for row in rows)
    labels = ids.masked_fill(mask == 0, -100)
    padded = model(ids, attention_mask=mask, position_ids=position_ids, labels=labels, num_items_in_batch=1)
    torch.testing.assert_close(padded.loss, apart)


def test_heads_learn_from_a_masked_prompt():
    """-100 removes one target and nothing else: heads inside a masked prompt predict the tokens after it."""
    ids = random_ids(1, 9)
    labels = ids.clone()
    labels[:, :5] = -100
    model = tiny_model(torch.float64, ngram_size=3).train()
    loss, _ = reference.training_loss(model, ids, labels)
    torch.testing.assert_close(model(ids, labels=labels).loss, loss)
    # With the first token after the prompt as the only target, head 2's prediction was made inside the prompt.
    labels[:, 6:] = -100
    grad = torch.autograd.grad(model(ids, labels=labels).loss, model.ngram_heads[1].fc_out.bias)[0]
    assert grad.abs().max() > 1e-3


def test_stop_gradient_matters():
    """The reference without `detach` has the same loss but other gradients, so the tests above would notice."""
    batch = BATCHES["plain"]
    model = tiny_model(torch.float64).train()
    loss = model(**batch).loss
    attached, _ = reference.training_loss(model, **batch, detach=False)
    torch.testing.assert_close(loss, attached)
    weight = model.lm_head.weight
    grad, attached_grad = torch.autograd.grad(loss, weight)[0], torch.autograd.grad(attached, weight)[0]
    assert (grad - attached_grad).abs().max() > 1e-2


@pytest.mark.parametrize("num_items", [None, 0, torch.tensor(0)])
@pytest.mark.parametrize("size", [1, 4])
def test_no_targets_give_zero_loss_and_finite_gradients(size, num_items):
    model = tiny_model(ngram_size=size, label_smoothing=0.1).train()
    ids = random_ids(2, 6)
    output = model(ids, labels=torch.full_like(ids, -100), num_items_in_batch=num_items)
    assert output.loss.item() == 0.0
    output.loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    model.eval()
    output = model(ids, labels=torch.full_like(ids, -100), ensemble_lambda=0.4, num_items_in_batch=num_items)
    assert output.loss.item() == 0.0


def test_frozen_backbone():
    batch = BATCHES["plain"]
    model = tiny_model(torch.float64, label_smoothing=0.1)
    expected = gradients(model, reference.training_loss(model, **batch)[0])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("ngram_heads"))
    model.train()(**batch).loss.backward()
    for name, parameter in model.named_parameters():
        if name.startswith("ngram_heads"):
            torch.testing.assert_close(parameter.grad, expected[name])
        else:
            assert parameter.grad is None


@pytest.mark.parametrize("chunk", [1, 2, 5, 1024])
def test_chunk_size_does_not_matter(monkeypatch, chunk):
    monkeypatch.setattr(loss_module, "LARGEST_CHUNK", chunk)
    assert_loss_matches(tiny_model(torch.float64, label_smoothing=0.1), BATCHES["holes"])


def test_float16_gradients_neither_overflow_nor_underflow():
    rows = [(10 + torch.randn(16384, 16)).half().requires_grad_() for _ in range(2)]
    targets = [torch.randint(0, 2, (16384,)) for _ in range(2)]
    weight = torch.randn(VOCAB_SIZE, 16).half().requires_grad_()
    loss, _ = loss_module.ngram_loss(NgramPredictions(rows, targets), LogitLayer(weight))
    # Like gradient scaling: the loss is multiplied by a large number.
    actual = torch.autograd.grad(loss * 256, [weight, *rows])
    full = [tensor.detach().float().requires_grad_() for tensor in (weight, *rows)]
    expected = torch.autograd.grad(
        loss_module.ngram_loss(NgramPredictions(full[1:], targets), LogitLayer(full[0]))[0] * 256, full
    )
    for grad, wanted in zip(actual, expected, strict=True):
        assert grad.isfinite().all()
        assert (grad.float() - wanted).norm() < 1e-2 * wanted.norm()


def test_float16_gradients_of_few_targets():
    """Their mean is over few rows, so they are large before any scaling."""
    rows = [torch.full((2, 16), 300.0).half().requires_grad_()]
    weight = (torch.randn(VOCAB_SIZE, 16) / 100).half().requires_grad_()
    loss, _ = loss_module.ngram_loss(NgramPredictions(rows, [torch.tensor([3, -100])]), LogitLayer(weight))
    (actual,) = torch.autograd.grad(loss, weight)
    full = weight.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.cross_entropy((rows[0][:1].double() @ full.T), torch.tensor([3])), full)
    assert wanted.abs().max() > 200 and actual.dtype == torch.float16
    torch.testing.assert_close(actual.double(), wanted, rtol=2e-3, atol=0.1)


def test_float16_without_rows():
    """A sample of the positions may be empty."""
    rows, weight = torch.zeros(0, 16).half().requires_grad_(), torch.randn(VOCAB_SIZE, 16).half().requires_grad_()
    loss, _ = loss_module.ngram_loss(NgramPredictions([rows], [torch.zeros(0, dtype=torch.long)]), LogitLayer(weight))
    assert loss == 0 and not torch.autograd.grad(loss, weight)[0].any()


def test_second_derivatives_are_refused():
    """Gradients are computed with the loss, so their own derivatives would be wrong."""
    model, ids = tiny_model().train(), random_ids(2, 6)
    with raises_naming(RuntimeError, "second derivatives", "`create_graph=True`"):
        torch.autograd.grad(model(ids, labels=ids).loss, model.lm_head.weight, create_graph=True)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_full_logits_are_never_computed(monkeypatch, size, label_smoothing):
    monkeypatch.setattr(loss_module, "LARGEST_CHUNK", 8)
    vocab_size, rows = 5000, 4 * 24
    model = tiny_model(ngram_size=size, vocab_size=vocab_size, label_smoothing=label_smoothing).train()
    ids = random_ids(4, 24)
    with LargestTensor() as seen:
        model(ids, labels=ids).loss.backward()
    assert seen.largest <= vocab_size * model.config.n_embd < rows * vocab_size / 5
