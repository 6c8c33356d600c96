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
    last = embeddings[..., -1:, :]
    continuation = [2**k * last for k in range(1, n)]
    return conjugate_of_known(torch.cat([embeddings, *continuation], dim=-2), n)


def conjugate_of_known(embeddings: torch.Tensor, n: int) -> torch.Tensor:
    """`conjugate` at the `T - n + 1` positions that need no continuation: each one reads n embeddings that exist."""
    length = max(embeddings.shape[-2] - n + 1, 0)
    # The nearest word, e[t+n-1], comes first: its coefficient is always n.
    total = n * embeddings.narrow(-2, min(n - 1, embeddings.shape[-2]), length)
    for i in range(2, n + 1):
        total = total.add(
            embeddings.narrow(-2, min(n - i, embeddings.shape[-2]), length), alpha=-((-1) ** i) * comb(n, i)
        )
    return total


def _check_level(n: int, lowest: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < lowest:
        raise ValueError(f"The level `n` must be an integer of at least {lowest}, got {n!r}.")
