"""Word difference representations: the arithmetic of the paper's equations 4 to 8."""

from math import comb

import torch


def wdr(embeddings: torch.Tensor, n: int) -> torch.Tensor:
    r"""
    The n-level word difference representation `Δ_n e`, by its recursive definition:
    `Δ_1 e[t] = e[t+1] - e[t]` and `Δ_n e[t] = Δ_{n-1} e[t+1] - Δ_{n-1} e[t]`; the last position keeps `e[T-1]`.

    Args:
        embeddings (`torch.Tensor` of shape `(..., T, d)`): The embeddings `e` of a sequence.
        n (`int`): The level, at least 0; level 0 is `e` itself.

    Returns:
        `torch.Tensor` of shape `(..., T, d)`.
    """
    _check_level(n, lowest=0)
    for _ in range(n):
        differences = embeddings[..., 1:, :] - embeddings[..., :-1, :]
        embeddings = torch.cat([differences, embeddings[..., -1:, :]], dim=-2)
    return embeddings


def conjugate(embeddings: torch.Tensor, n: int) -> torch.Tensor:
    r"""
    The conjugate term `Δ^r_n e` that turns a word difference back into a word: `wdr(e, n) + conjugate(e, n) = e[t+n]`,
    by its binomial form `-sum_{i=1..n} C(n,i) (-1)^i e[t+n-i]`. Position t reads `e[t], ..., e[t+n-1]` only.

    At the end of the sequence the definition of `wdr` amounts to continuing it by doubling, `e[T-1+k] = 2^k e[T-1]`;
    the same continuation is used here, so that the equation above holds at every position.

    Args:
        embeddings (`torch.Tensor` of shape `(..., T, d)`): The embeddings `e` of a sequence.
        n (`int`): The level, at least 1.

    Returns:
        `torch.Tensor` of shape `(..., T, d)`.
    """
    _check_level(n, lowest=1)
    length, last = embeddings.shape[-2], embeddings[..., -1:, :]
    continued = torch.cat([embeddings, *(2**k * last for k in range(1, n))], dim=-2)
    return -sum(comb(n, i) * (-1) ** i * continued.narrow(-2, n - i, length) for i in range(1, n + 1))


def _check_level(n: int, lowest: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < lowest:
        raise ValueError(f"The level `n` must be an integer of at least {lowest}, got {n!r}.")
