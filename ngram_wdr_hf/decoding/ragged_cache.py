"""A cache whose rows keep different numbers of tokens of a forward pass."""

from collections.abc import Sequence

import torch
from transformers import Cache, DynamicLayer
from transformers.cache_utils import DynamicSlidingWindowLayer

from ..compat import is_croppable
from .cache_history import can_host_history, layers_and_history, self_attention_of, stock_class_of
from .draft_limits import refuse

# Layers whose rows can be cropped and shifted separately.
RAGGED_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)


def check_can_crop(cache: Cache | None, batch_size: int) -> None:
    """
    Raise `CannotDraft` unless rejected drafts can be removed from a cache. For more than one row, it must also be
    possible to shift each row by itself.
    """
    if cache is None:
        refuse("no cache", "leave `use_cache` at `True`")
    if not can_host_history(cache):
        refuse(f"a {type(cache).__name__}, which cannot be cropped", "leave it out")
    cache = self_attention_of(cache)
    # An empty cache creates its layers in the first forward pass.
    for layer in cache.layers or [cache.layer_class_to_replicate()]:
        name = stock_class_of(layer).__name__
        if not is_croppable(layer) or hasattr(layer, "_quantize"):
            refuse(f"a {name}, which cannot be cropped", "use the default dynamic cache")
        if batch_size > 1 and stock_class_of(layer) not in RAGGED_LAYERS:
            refuse(f"a batch and a {name}, whose rows cannot be shifted", "generate the rows one by one")


class RaggedCache:
    """
    Wraps a cache whose rows end at the same column, although they keep different numbers of tokens. Rows that keep
    fewer tokens are shifted to the right; the columns that become free at the left are masked, like left padding.
    `attention_mask`, `(batch_size, num_columns)`, has 0 for them and for padding; it is `None` without both.
    """

    def __init__(self, cache: Cache, batch_size: int, attention_mask: torch.Tensor | None):
        self.cache = cache
        # Sliding windows keep the tokens that leave the window until the drafts are checked.
        cache.activate_past_recording()
        self.attention_mask = attention_mask
        # Number of columns that each row was shifted by.
        self.shifts = [0] * batch_size

    @property
    def is_ragged(self) -> bool:
        """Whether any row is shifted, so that its tokens' columns are not their positions."""
        return any(self.shifts)

    def bytes_per_token(self) -> float:
        """Return the size of the cache per token of a row, without layers that store no tokens."""
        layers = [layer for layer in self_attention_of(self.cache).layers if stock_class_of(layer) in RAGGED_LAYERS]
        tensors = [x for layer in layers if layer.get_seq_length() > 0 for x in (layer.keys, layer.values)]
        return sum(x.numel() * x.element_size() for x in tensors) / (len(self.shifts) * self.cache.get_seq_length())

    def drop(self, counts: Sequence[int], device: torch.device) -> None:
        """
        Remove the last `counts[i]` columns of each row i. Rows that lose more than others are shifted to the right, so
        that all rows end at the same column.
        """
        least = min(counts)
        new_shifts = [count - least for count in counts]
        if any(new_shifts):
            self._shift_right(torch.tensor(new_shifts, device=device))
            self.shifts = [shift + new for shift, new in zip(self.shifts, new_shifts, strict=True)]
        # Even by 0, so that sliding windows release the tokens they kept for cropping.
        self.cache.crop(-least)
        if least and self.attention_mask is not None:
            self.attention_mask = self.attention_mask[:, :-least]
        self._trim()

    def select(self, rows: Sequence[int], device: torch.device) -> None:
        """Keep only the rows with these indices, in this order. Columns that are masked in all of them are removed."""
        index = torch.tensor(rows, device=device)
        self.cache.batch_select_indices(index)
        self.shifts = [self.shifts[row] for row in rows]
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[index]
        self._trim()

    def release(self) -> None:
        """Stop recording in sliding windows: nothing will be cropped any more."""
        for layer in self_attention_of(self.cache).layers:
            if hasattr(layer, "record_past"):
                layer.record_past = False

    def _shift_right(self, shifts: torch.Tensor) -> None:
        """Shift row i of mask and cache to the right by `shifts[i]` columns: it loses as many of its last tokens."""
        if self.attention_mask is None:
            columns = self.cache.get_seq_length()
            self.attention_mask = torch.ones(len(shifts), columns, dtype=torch.long, device=shifts.device)
        sources = torch.arange(self.attention_mask.shape[1], device=shifts.device) - shifts[:, None]
        self.attention_mask = self.attention_mask.gather(1, sources.clamp(min=0)).masked_fill(sources < 0, 0)
        indices = {}
        for layer in self._moving_layers():
            # Shapes differ: a sliding window has fewer columns, and the history has one head.
            shape = layer.keys.shape[:3]
            if shape not in indices:
                indices[shape] = _shifted_indices(*shape, shifts.to(layer.keys.device))
            layer.keys, layer.values = (_select_vectors(x, indices[shape]) for x in (layer.keys, layer.values))

    def _moving_layers(self) -> list:
        """Return the layers with tokens, the history among them."""
        return [layer for layer in layers_and_history(self.cache) if layer.get_seq_length() > 0]

    def _trim(self) -> None:
        """Remove the first columns if they are masked in every row because of shifts."""
        surplus = min(self.shifts)
        if surplus == 0:
            return
        self.attention_mask = self.attention_mask[:, surplus:]
        width = self.attention_mask.shape[1]
        for layer in self._moving_layers():
            first = max(0, layer.keys.shape[-2] - width)
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length -= surplus
            layer.keys, layer.values = layer.keys[..., first:, :], layer.values[..., first:, :]
        self.shifts = [shift - surplus for shift in self.shifts]


def _shifted_indices(batch_size: int, num_heads: int, width: int, shifts: torch.Tensor) -> torch.Tensor:
    """
    Return flat indices, for `_select_vectors`, that shift row i to the right by `shifts[i]` columns. The columns that
    become free repeat the first.
    """
    columns = (torch.arange(width, device=shifts.device) - shifts[:, None]).clamp(min=0)
    blocks = torch.arange(batch_size * num_heads, device=shifts.device).view(batch_size, num_heads, 1) * width
    return (blocks + columns[:, None]).flatten()


def _select_vectors(states: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return `states`, `(batch_size, num_heads, width, d)`, with whole vectors rearranged: faster than `gather`."""
    return states.reshape(-1, states.shape[-1]).index_select(0, indices).view(states.shape)
