"""Positions for decoders that count them from their cache, all rows alike."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn


@contextmanager
def positions_of_rows(decoder: nn.Module, position_ids: torch.LongTensor | None) -> Iterator[None]:
    """
    Lets a decoder with absolute positions (`embed_positions`, as BART's and Marian's) use `position_ids`,
    `(batch_size, T)`. One without them sees relative positions, which do not change when a row is moved.
    """
    table = getattr(decoder, "embed_positions", None)
    if position_ids is None or table is None:
        yield
        return
    thread = threading.get_ident()

    def begin_at_zero(table: nn.Embedding, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        # Its own count may lie beyond the last position, and is not used anyway.
        if threading.get_ident() != thread or kwargs.get("position_ids") is None:
            return None
        return args, {**kwargs, "position_ids": torch.zeros_like(kwargs["position_ids"])}

    def embed(table: nn.Embedding, args: tuple, embedded: torch.Tensor) -> torch.Tensor:
        # Another thread may be using the same model, and has positions of its own.
        if threading.get_ident() != thread:
            return embedded
        return F.embedding(position_ids + getattr(table, "offset", 0), table.weight)

    hooks = (
        table.register_forward_pre_hook(begin_at_zero, with_kwargs=True),
        table.register_forward_hook(embed),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
