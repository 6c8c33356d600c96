"""The weights of the ensemble."""

from collections.abc import Sequence
from typing import Any

# The paper's λ, or the weights of the next token and of each head.
Ensemble = float | tuple[float, ...]


def is_lambda(ensemble: float | Sequence[float]) -> bool:
    """Return whether an ensemble is a λ; otherwise, it is weights."""
    return isinstance(ensemble, (int, float))


def weights_of(ensemble: float | Sequence[float], ngram_size: int) -> Sequence[float]:
    """Return the N weights of an ensemble. The paper's λ is `1 - λ` for the next token and `λ/(N-1)` for each head."""
    if not is_lambda(ensemble):
        return ensemble
    if ngram_size == 1:
        return [1.0]
    return [1.0 - ensemble] + [ensemble / (ngram_size - 1)] * (ngram_size - 1)


def is_plain(weights: Sequence[float]) -> bool:
    """Return whether an ensemble is the model's own prediction: the weight 1, and 0 for every head."""
    return weights[0] == 1.0 and not any(weights[1:])


def ensemble_arguments(ensemble: Ensemble) -> dict[str, Any]:
    """Return an ensemble as the argument of `forward` and `generate` that selects it."""
    return {"ensemble_lambda" if is_lambda(ensemble) else "ensemble_weights": ensemble}


def describe_ensemble(ensemble: Ensemble) -> str:
    """Return a short text for an ensemble, such as "λ=0.4" or "weights 0.80 0.27 0.06 -0.05"."""
    if is_lambda(ensemble):
        return f"λ={ensemble:g}"
    return f"weights {' '.join(f'{weight:.2f}' for weight in ensemble)}"
