"""The fitted ensemble, against a brute-force search and other optimizers."""

import itertools

import pytest
import torch
from torch.nn.functional import cross_entropy

from ngram_wdr_hf import fit_ensemble
from ngram_wdr_hf.data.token_stream import EvaluationWindows
from ngram_wdr_hf.evaluation import ensemble_fit
from ngram_wdr_hf.evaluation.scores import score
from ngram_wdr_hf.method.logits import LogitLayer
from tests.support.texts import stream_of
from tests.support.tiny import random_ids, tiny_model


@pytest.fixture(scope="module")
def text():
    return EvaluationWindows(stream_of(random_ids(1, 60)[0]), 16, 8)


@torch.no_grad()
def nll(model, text, weights):
    """The mean NLL of the ensemble, from the model's predictions."""
    nlls = []
    for window in text:
        predictions = model.ngram_predictions(**{name: tensor[None] for name, tensor in window.items()})
        logits = model.get_output_embeddings()(predictions.ensemble(weights))[0]
        is_target = predictions.targets[0][0] != -100
        nlls.append(cross_entropy(logits[is_target], predictions.targets[0][0][is_target], reduction="none"))
    return torch.cat(nlls).mean().item()


@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_fit_is_the_minimum(text, target):
    model = tiny_model(torch.float64, ngram_size=3, ngram_target=target)
    fit = fit_ensemble(model, text, batch_size=3)
    assert fit.num_tokens == 59
    assert fit.nll == pytest.approx(nll(model, text, fit.weights), abs=1e-12)
    assert fit.plain_nll == pytest.approx(nll(model, text, 0.0), abs=1e-12)
    assert fit.temperature_nll == pytest.approx(nll(model, text, fit.temperature), abs=1e-12)
    assert fit.nll < fit.temperature_nll < fit.plain_nll
    # No point of a grid around the minimum, fine or coarse, is better.
    for size in (1e-3, 0.1, 1.0):
        for offsets in itertools.product((-size, 0.0, size), repeat=3):
            weights = [weight + offset for weight, offset in zip(fit.weights, offsets, strict=True)]
            assert nll(model, text, weights) > fit.nll - 1e-9
        for offset in (-size, size):
            assert nll(model, text, [fit.temperature_weight + offset, 0.0, 0.0]) > fit.temperature_nll
    # Never worse than the best λ.
    lambdas = [i / 10 for i in range(11)]
    assert fit.nll < min(score(model, text, lambdas, 4).nll_sums) / fit.num_tokens


def test_limit_and_model_without_heads(text):
    assert fit_ensemble(tiny_model(), text, max_tokens=20).num_tokens == 20
    fit = fit_ensemble(tiny_model(torch.float64, ngram_size=1), text)
    assert fit.weights == pytest.approx([fit.temperature_weight])


@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_derivatives(text, soft_cap):
    """Gradient and Hessian against automatic differentiation; with a soft cap only the gradient is exact."""
    model = tiny_model(torch.float64, ngram_size=3)
    rows, targets = ensemble_fit._read(model, text, 2, 100)
    layer = LogitLayer.of(model)
    if soft_cap:
        layer = LogitLayer(layer.weight, layer.bias, type(layer.shape)(2.0, 3.0, soft_cap=soft_cap))

    def total(weights):
        mixed = sum(weight * row for weight, row in zip(weights, rows, strict=True))
        return cross_entropy(layer(mixed), targets, reduction="sum")

    weights = torch.tensor([0.8, 0.3, -0.1], dtype=torch.float64)
    value, gradient, hessian = ensemble_fit._derivatives(rows, targets, layer, weights)
    torch.testing.assert_close(value, total(weights))
    torch.testing.assert_close(gradient, torch.func.grad(total)(weights))
    if not soft_cap:
        torch.testing.assert_close(hessian, torch.func.hessian(total)(weights))
