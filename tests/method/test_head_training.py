"""How the heads are trained beside the model: gradient share, loss weights, sampled positions, tokens as input."""

import pytest
import torch

from ngram_wdr_hf.method.head_training import HeadTraining, head_weights
from tests.method.test_loss import assert_loss_matches
from tests.support import reference
from tests.support.batches import BATCHES
from tests.support.errors import raises_naming
from tests.support.tiny import random_ids, tiny_model
from tests.support.training import gradients

FREE = {"head_gradient": 0.0, "head_loss_weight": 0.7}


@pytest.mark.parametrize("name", ["plain", "holes", "left padding", "packed", "shorter than N", "one token"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("gradient", [0.0, 0.3, 1.0])
def test_gradient_share(gradient, smoothing, name):
    fields = {"head_gradient": gradient, "head_loss_weight": 0.7, "label_smoothing": smoothing}
    assert_loss_matches(tiny_model(torch.float64, **fields), BATCHES[name])


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize("reads", ["hidden+tokens", "previous+token"])
@pytest.mark.parametrize("fields", [{}, {"head_gradient": 0.3}, {**FREE, "tie_word_embeddings": False}])
@pytest.mark.parametrize("name", ["holes", "left padding", "packed", "shorter than N"])
def test_heads_that_read_tokens(name, fields, reads, target):
    model = tiny_model(torch.float64, ngram_target=target, ngram_head_reads=reads, **fields)
    assert len(model.ngram_heads) == (1 if reads == "previous+token" else 3)
    assert_loss_matches(model, BATCHES[name])


@pytest.mark.parametrize("fields", [{}, {**FREE, "ngram_head_reads": "hidden+tokens"}])
def test_wider_heads(fields, tmp_path):
    model = tiny_model(torch.float64, ngram_head_expansion=3, **fields)
    width = model.config.n_embd
    assert [head.fc_in.out_features for head in model.ngram_heads] == [3 * width] * 3
    assert_loss_matches(model, BATCHES["holes"])
    model.save_pretrained(tmp_path)
    with raises_naming(ValueError, "`ngram_head_expansion`"):
        type(model).from_pretrained(tmp_path, ngram_head_expansion=2)


@pytest.mark.parametrize("weight", [None, 0.3, 2.0])
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_loss_weights(weight, decay):
    model = tiny_model(torch.float64, head_loss_weight=weight, head_loss_decay=decay)
    assert_loss_matches(model, BATCHES["holes"])


def test_weights_by_depth():
    assert head_weights(1, 0.3, 0.5) == [1.0]
    assert head_weights(3) == [0.5, 0.25, 0.25]
    assert head_weights(4, 0.7, 0.5) == pytest.approx([1.0, 0.4, 0.2, 0.1])
    assert sum(head_weights(4, None, 0.8)) == pytest.approx(1.0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_free_heads_leave_the_model_alone(smoothing, tied):
    """With γ = 0, loss and gradients of the trunk are those of the plain model, bit for bit."""
    fields = {"label_smoothing": smoothing, "tie_word_embeddings": tied}
    plain = tiny_model(torch.float32, ngram_size=1, **fields).train()
    for reads in ("hidden", "hidden+tokens", "previous+token"):
        model = tiny_model(torch.float32, **fields, **FREE, ngram_head_reads=reads).train()
        model.load_state_dict(plain.state_dict(), strict=False)
        for batch in (BATCHES["holes"], BATCHES["right padding"]):
            expected, output = plain(**batch), model(**batch)
            wanted, actual = gradients(plain, expected.loss), gradients(model, output.loss)
            assert torch.equal(output.head_losses[0], expected.head_losses[0])
            for name in wanted:
                assert torch.equal(actual[name], wanted[name]), name
            assert all(actual[name].any() for name in actual if name.startswith("ngram_heads.0"))


def sampled_reference(model, batch, training):
    """The reference's loss with each head's targets restricted to the sample, and divided by its rate."""
    ids, labels = batch["input_ids"], batch["labels"]
    hidden = reference.hidden_states(model, ids)
    total, count = 0.0, (labels[:, 1:] != -100).sum()
    for n in range(model.config.ngram_size):
        for b in range(ids.shape[0]):
            targets = torch.full((1, ids.shape[1] - n), -100)
            targets[0, : ids.shape[1] - 1 - n] = labels[b, n + 1 :]
            chosen = training.choose(targets, n)[0] if n else targets[0] != -100
            for t in chosen.nonzero()[:, 0].tolist():
                state = hidden[b, t] if n == 0 else reference.head_prediction(model, hidden, ids, b, t, n)
                nll = torch.nn.functional.cross_entropy(reference.logits_of(model, state), targets[0, t])
                total = total + training.weights[n] * nll / (training.sample_rate if n else 1.0)
    return total / count


@pytest.mark.parametrize("step", [0, 5])
@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_sampled_loss_and_gradients(target, step):
    model = tiny_model(torch.float64, ngram_target=target, head_sample_rate=0.4).train()
    model.ngram_step = step
    batch = BATCHES["holes"]
    training = HeadTraining(head_weights(model.config.ngram_size), 1.0, 0.4, step)
    loss, expected = model(**batch).loss, sampled_reference(model, batch, training)
    torch.testing.assert_close(loss, expected)
    actual, wanted = gradients(model, loss), gradients(model, expected)
    for name in wanted:
        torch.testing.assert_close(actual[name], wanted[name])


@pytest.mark.parametrize("fields", [{}, {"head_gradient": 0.3}, FREE, {"label_smoothing": 0.1}])
@pytest.mark.parametrize("name", ["holes", "left padding", "packed", "shorter than N"])
def test_loss_of_draft_tokens(name, fields):
    """The heads' loss is that of a vocabulary of the draft tokens, the model's that of all tokens."""
    model = tiny_model(torch.float64, head_loss_tokens="draft", **fields)
    model.ngram_set_draft_tokens([7, 3, 1, 9, 4, 11, 2, 8])
    assert_loss_matches(model, BATCHES[name])


def test_known_hidden_states_train_the_heads_only():
    """With the hidden states of a frozen model, the loss is that of the heads, and so are the gradients."""
    batch = BATCHES["holes"]
    for fields in ({}, {"head_loss_tokens": "draft", "draft_vocab_size": 9}, {"head_sample_rate": 0.6}):
        model = tiny_model(torch.float64, head_loss_weight=0.7, **fields).train()
        model.requires_grad_(False).ngram_heads.requires_grad_(True)
        full = model(**batch)
        states = model.transformer(batch["input_ids"]).last_hidden_state
        output = model(**batch, last_hidden_state=states)
        torch.testing.assert_close(output.loss, full.loss - full.head_losses[0])
        torch.testing.assert_close(output.head_losses[1:], full.head_losses[1:])
        assert output.head_losses[0] == 0 == output.head_counts[0]
        actual, wanted = gradients(model.ngram_heads, output.loss), gradients(model.ngram_heads, full.loss)
        for name in wanted:
            torch.testing.assert_close(actual[name], wanted[name])


def test_sample_is_unbiased_and_independent():
    """Every target is chosen with the rate ρ, independently of step, head, position and row."""
    targets = torch.cat([random_ids(2, 40), random_ids(2, 40, seed=1)])
    targets[1, 7] = -100
    chosen = torch.stack(
        [
            torch.stack([HeadTraining([1.0] * 4, sample_rate=0.3, step=step).choose(targets, n) for n in (1, 2, 3)])
            for step in range(2000)
        ]
    ).double()
    assert not chosen[..., 1, 7].any()
    chosen[..., 1, 7] = 0.3
    # Five standard errors, of a rate and of correlations between neighbors.
    assert (chosen.mean(0) - 0.3).abs().max() < 5 * (0.3 * 0.7 / 2000) ** 0.5
    standardized = (chosen - 0.3) / (0.3 * 0.7) ** 0.5
    for dim in range(4):
        products = standardized * standardized.roll(1, dim)
        assert products.mean().abs() < 5 / products.numel() ** 0.5, dim


def test_sample_does_not_depend_on_the_batch():
    """A row's sample is the same alone, in a batch, and with padding behind it."""
    rows, training = random_ids(3, 12), HeadTraining([1.0] * 3, sample_rate=0.5, step=3)
    chosen = training.choose(rows, 2)
    assert torch.equal(chosen[1:2], training.choose(rows[1:2], 2))
    padded = torch.cat([rows, torch.full((3, 4), -100)], dim=1)
    assert torch.equal(chosen, training.choose(padded, 2)[:, :12])
    before = torch.random.get_rng_state()
    training.choose(rows, 1)
    assert torch.equal(before, torch.random.get_rng_state())


def test_head_without_weight_is_not_computed_but_has_gradients():
    """A curriculum switches heads off; data-parallel training needs their gradients, which are 0."""
    model = tiny_model(torch.float64, head_loss_weight=0.5).train()
    model.ngram_head_factors = [1.0, 0.0, 0.0]
    output = model(**BATCHES["holes"])
    output.loss.backward()
    assert output.head_losses[1] > 0 and not output.head_losses[2:].any()
    assert model.ngram_heads[0].fc_in.weight.grad.any()
    for head in model.ngram_heads[1:]:
        assert not head.fc_in.weight.grad.any() and not head.fc_out.bias.grad.any()


INVALID = {
    "head_gradient": [-0.1, 1.5, "all", True],
    "head_sample_rate": [0.0, 0, -1.0, 1.1, float("nan")],
    "head_loss_weight": [-1.0, 0.0, float("inf"), float("nan"), "half"],
    "head_loss_decay": [0.0, 1.2],
    "ngram_head_reads": ["tokens", None],
    "ngram_head_expansion": [0, 2.5, "wide", None],
    "head_loss_tokens": ["frequent", None],
    "ensemble_weights": [[1.0], [1.0, 0.0, 0.0, 0.0, 0.0], [1.0, float("nan"), 0.0, 0.0], ["1", 0, 0, 0]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in INVALID for value in INVALID[name]])
def test_invalid_fields(name, value):
    with raises_naming(ValueError, f"`{name}`"):
        tiny_model(**{name: value})


def test_weights_and_lambda():
    with raises_naming(ValueError, "`ensemble_weights`", "`ensemble_lambda=0.4`"):
        tiny_model(ensemble_weights=[0.8, 0.2, 0.1, 0.0], ensemble_lambda=0.4)
