"""The weights of the ensemble."""

from collections.abc import Sequence


def weights_of(ensemble: float | Sequence[float], ngram_size: int) -> Sequence[float]:
    """
    Return the N weights of an ensemble: of the paper's λ, `1 - λ` for the next token and `λ/(N-1)` for each head;
    given weights unchanged.
    """
    if not isinstance(ensemble, (int, float)):
        return ensemble
    if ngram_size == 1:
        return [1.0]
    return [1.0 - ensemble] + [ensemble / (ngram_size - 1)] * (ngram_size - 1)


def is_plain(weights: Sequence[float]) -> bool:
    """Return whether an ensemble is the model's own prediction: the weight 1, and 0 for every head."""
    return weights[0] == 1.0 and not any(weights[1:])
