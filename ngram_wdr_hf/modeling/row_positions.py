"""Positions per batch row for decoders that derive one position for all rows from the cache."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn


@contextmanager
def positions_of_rows(decoder: nn.Module, position_ids: torch.Tensor | None) -> Iterator[None]:
    """
    Inside the context, make a decoder with absolute positions (`embed_positions`, as in BART and Marian) use
    `position_ids` of shape `(batch_size, T)`. Only calls of the same thread are affected. With `None`, and for
    decoders with relative positions, nothing changes.
    """
    table = getattr(decoder, "embed_positions", None)
    if position_ids is None or table is None:
        yield
        return
    thread = threading.get_ident()

    def zero_positions(table: nn.Embedding, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        # The decoder's own positions may exceed the table. `replace_embeddings` discards them anyway.
        if threading.get_ident() != thread or kwargs.get("position_ids") is None:
            return None
        return args, {**kwargs, "position_ids": torch.zeros_like(kwargs["position_ids"])}

    def replace_embeddings(table: nn.Embedding, args: tuple, embedded: torch.Tensor) -> torch.Tensor:
        # Another thread may use the same model with other positions.
        if threading.get_ident() != thread:
            return embedded
        return F.embedding(position_ids + getattr(table, "offset", 0), table.weight)

    hooks = (
        table.register_forward_pre_hook(zero_positions, with_kwargs=True),
        table.register_forward_hook(replace_embeddings),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
