"""Word difference representations (WDR): the arithmetic of the paper's equations 7 to 10."""

from collections.abc import Sequence
from math import comb

import torch

from .configuration import check_integer


def wdr(embeddings: torch.Tensor, n: int) -> torch.Tensor:
    r"""
    Return the n-level word difference representation `Δ_n e`: `Δ_1 e[t] = e[t+1] - e[t]` and
    `Δ_n e[t] = Δ_{n-1} e[t+1] - Δ_{n-1} e[t]`. The last position keeps `e[T-1]` at every level.

    Args:
        embeddings (`torch.Tensor` of shape `(..., T, d)`): The embeddings `e` of a sequence.
        n (`int`): The level, at least 0; level 0 is `e` itself.

    Returns:
        `torch.Tensor` of shape `(..., T, d)`.
    """
    check_integer("n", n, lowest=0)
    for _ in range(n):
        differences = embeddings[..., 1:, :] - embeddings[..., :-1, :]
        embeddings = torch.cat([differences, embeddings[..., -1:, :]], dim=-2)
    return embeddings


def conjugate(embeddings: torch.Tensor, n: int) -> torch.Tensor:
    r"""
    Return the conjugate term `Δ^r_n e = -sum_{i=1..n} C(n,i) (-1)^i e[t+n-i]`, which turns a word difference back into
    an embedding: `wdr(e, n)[t] + conjugate(e, n)[t] = e[t+n]`. At the last positions, `wdr` implicitly continues the
    sequence by doubling, `e[T-1+k] = 2^k e[T-1]`. The same is done here, so that the equation holds everywhere.

    Args:
        embeddings (`torch.Tensor` of shape `(..., T, d)`): The embeddings `e` of a sequence.
        n (`int`): The level, at least 1.

    Returns:
        `torch.Tensor` of shape `(..., T, d)`.
    """
    check_integer("n", n)
    length, last = embeddings.shape[-2], embeddings[..., -1:, :]
    continued = torch.cat([embeddings, *(2**k * last for k in range(1, n))], dim=-2)
    return conjugate_of([continued.narrow(-2, n - i, length) for i in range(1, n + 1)])


def conjugate_of(neighbors: Sequence[torch.Tensor]) -> torch.Tensor:
    r"""
    Return the conjugate term `-sum_{i=1..n} C(n,i) (-1)^i e_i`. The `neighbors`, `e_1, ..., e_n` of one shape, are the
    embeddings of the n tokens next to the predicted one, nearest first: those before it in a causal model, after it in
    a masked one.
    """
    n = len(neighbors)
    total = neighbors[0] if n == 1 else n * neighbors[0]
    for i, embedding in enumerate(neighbors[1:], start=2):
        total = torch.add(total, embedding, alpha=(-1) ** (i + 1) * comb(n, i))
    return total
