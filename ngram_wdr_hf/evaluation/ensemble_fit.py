"""The ensemble's weights that fit a text best, found by Newton's method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ..method.documents import IGNORE_INDEX
from ..method.ensemble import Ensemble
from ..method.logits import LogitLayer
from ..method.loss import chunk_rows
from .scores import NO_TARGETS, ScoredText, processes, sample_predictions, sum_dtype, sum_over_processes

if TYPE_CHECKING:
    from ..modeling.causal import NgramMixin

# Newton's method has converged when a step would lower the NLL by less than this share of it.
TOLERANCE = 1e-8
MAX_STEPS, MAX_HALVINGS = 50, 10


@dataclass(frozen=True)
class EnsembleFit:
    """
    The fitted weights of the ensemble `w_0 h + sum_n w_n ê_n`, and the mean NLL of the text with them, with the best
    `w_0` alone (the inverse of a temperature), and of the model's own prediction.
    """

    weights: list[float]
    nll: float
    temperature_weight: float
    temperature_nll: float
    plain_nll: float
    num_tokens: int

    @property
    def ensemble(self) -> Ensemble:
        """The fitted weights as an ensemble."""
        return tuple(self.weights)

    @property
    def temperature(self) -> Ensemble:
        """The best temperature without heads as an ensemble: weight 0 for every head."""
        return (self.temperature_weight, *([0.0] * (len(self.weights) - 1)))


def fit_ensemble(model: "NgramMixin", text: ScoredText, batch_size: int = 8, max_tokens: int = 20_000) -> EnsembleFit:
    """
    Find the weights `w` of the ensemble `w_0 h + sum_n w_n ê_n` with the lowest NLL on a text, usually the validation
    text. The logits are linear in the weights, so the NLL is convex, and Newton's method finds its minimum. A logit
    bias is not weighted. With a soft cap the NLL is not convex: the steps then use the Gauss-Newton matrix, and the
    result is a local minimum no worse than the model's own prediction.

    The model is not changed. To use the weights, set `model.config.ensemble_weights = fit.weights`. In a distributed
    run, every process must call this: it reads its share of the text, and all return the fit to the whole. All
    predictions are kept in memory, so a random sample of `max_tokens` stands for a longer text.
    """
    predictions, targets = _read(model, text, batch_size, max_tokens)
    layer = LogitLayer.of(model)

    def derivatives(weights: torch.Tensor) -> list[torch.Tensor]:
        parts = _derivatives(predictions, targets, layer, weights)
        return [sum_over_processes(part).cpu().double() for part in parts]

    count = int(sum_over_processes(torch.tensor(len(targets), device=layer.weight.device)))
    if count == 0:
        raise ValueError(NO_TARGETS)
    plain_nll = derivatives(torch.ones(1))[0].item() / count
    temperature, temperature_nll = _minimize(derivatives, 1)
    weights, nll = _minimize(derivatives, len(predictions))
    return EnsembleFit(weights.tolist(), nll / count, temperature.item(), temperature_nll / count, plain_nll, count)


@torch.no_grad()
def _read(
    model: "NgramMixin", text: ScoredText, batch_size: int, max_tokens: int
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return this process's predictions of each depth, N of shape `(num_tokens, d)`, and targets `(num_tokens,)`."""
    rows, targets = [], []
    for predictions in sample_predictions(model, text, batch_size, max_tokens):
        is_target = predictions.targets[0] != IGNORE_INDEX
        depths = [predictions.main, *map(predictions.past, range(1, len(predictions.embeddings)))]
        rows.append([depth[is_target] for depth in depths])
        targets.append(predictions.targets[0][is_target])
    share = -(-max_tokens // processes()[1])
    return [torch.cat(parts)[:share] for parts in zip(*rows, strict=True)], torch.cat(targets)[:share]


@torch.no_grad()
def _derivatives(
    predictions: Sequence[torch.Tensor], targets: torch.Tensor, layer: LogitLayer, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return NLL sum, gradient and Hessian for weights of the first depths."""
    depths = predictions[: len(weights)]
    dtype = torch.promote_types(layer.weight.dtype, torch.float32)
    weights = weights.to(layer.weight.device, sum_dtype(layer.weight.device))
    nll, gradient, hessian = weights.new_zeros(()), torch.zeros_like(weights), weights.new_zeros(2 * weights.shape)
    size = max(1, chunk_rows(layer.weight) // (1 + len(weights)))
    for target, *rows in zip(targets.split(size), *(depth.split(size) for depth in depths), strict=True):
        # (K, rows, vocab_size)
        parts = torch.stack([F.linear(layer.scaled(row), layer.weight).to(dtype) for row in rows])
        logits = torch.einsum("k,krv->rv", weights.to(parts.dtype), parts)
        if layer.scaled_bias is not None:
            logits += layer.scaled_bias
        if layer.shape.soft_cap is not None:
            logits = layer.shape.cap(logits)
            # With the slope of the cap, the Hessian is the Gauss-Newton matrix.
            parts *= 1 - (logits / layer.shape.soft_cap) ** 2
        log_probabilities = logits.log_softmax(-1)
        nll += F.nll_loss(log_probabilities, target, reduction="sum")
        probabilities = log_probabilities.exp_()
        means = torch.einsum("rv,krv->kr", probabilities, parts)
        of_targets = parts.gather(2, target[None, :, None].expand(len(parts), -1, 1))[..., 0]
        gradient += (means - of_targets).sum(1, dtype=weights.dtype)
        parts -= means[..., None]
        hessian += torch.einsum("krv,lrv->kl", parts * probabilities, parts)
    return nll, gradient, hessian


def _minimize(derivatives: Callable, num_weights: int) -> tuple[torch.Tensor, float]:
    """
    Minimize a function by Newton's method with step halving, from weight 1 for the first depth and 0 for the others.
    `derivatives` returns value, gradient and Hessian for weights. Return the weights and the minimum.
    """
    identity = torch.eye(num_weights, dtype=torch.float64)
    weights = identity[0]
    value, gradient, hessian = derivatives(weights)
    for _ in range(MAX_STEPS):
        # Depths with equal predictions make the Hessian singular.
        ridge = 1e-10 * hessian.diagonal().mean().clamp(min=1e-30) * identity
        step = torch.linalg.solve(hessian + ridge, -gradient)
        if -(gradient @ step) / 2 < TOLERANCE * value.abs():
            break
        # With a soft cap, whole steps may lead uphill.
        for size in (0.5**i for i in range(MAX_HALVINGS)):
            found = derivatives(weights + size * step)
            if found[0] < value:
                break
        else:
            break
        weights, (value, gradient, hessian) = weights + size * step, found
    return weights, value.item()
