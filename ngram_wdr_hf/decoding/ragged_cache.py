"""A cache whose rows keep different numbers of the tokens they were just given."""

from collections.abc import Sequence

import torch
from transformers import Cache, DynamicLayer
from transformers.cache_utils import BaseQuantizedLayer, DynamicSlidingWindowLayer

from .history import NgramHistoryLayer, can_host_history, self_attention_of

# Of these, each row can be cut and moved by itself.
RAGGED_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, NgramHistoryLayer)


def check_can_be_cut(cache: Cache | None, batch_size: int) -> None:
    """Raises a `ValueError` for a cache that cannot take back what was drafted in vain."""
    if cache is None:
        raise ValueError("`use_mtp=True` needs a cache to take drafts back from: leave `use_cache` at `True`.")
    if not can_host_history(cache):
        raise ValueError(
            f"`use_mtp=True` takes rejected drafts back from the cache, and a {type(cache).__name__} cannot be "
            "cropped: use `use_mtp=False`."
        )
    layers = self_attention_of(cache).layers
    unfit = [layer for layer in layers if not layer.is_croppable or isinstance(layer, BaseQuantizedLayer)]
    if unfit:
        raise ValueError(
            f"`use_mtp=True` takes rejected drafts back from the cache, and a {type(unfit[0]).__name__} cannot be "
            "cropped: use the default dynamic cache, or `use_mtp=False`."
        )
    unfit = [layer for layer in layers if type(layer) not in RAGGED_LAYERS]
    if unfit and batch_size > 1:
        raise ValueError(
            f"In a batch, `use_mtp=True` moves every row's cache by itself, and that of a {type(unfit[0]).__name__} "
            "cannot be moved: generate the rows one by one, or use `use_mtp=False`."
        )


class RaggedCache:
    r"""
    Wraps a cache whose rows are to end at the same column however many tokens each of them keeps: rows that keep fewer
    are moved to the right, so that columns without meaning are at the left, as padding is.

    Args:
        cache (`Cache`): Of a type that `check_can_be_cut` accepts.
        batch_size (`int`): Its rows.
        attention_mask (`torch.Tensor` of shape `(batch_size, num_columns)`, *optional*):
            Which columns are real, if not all are.

    Attributes:
        attention_mask (`torch.Tensor`, *optional*): The same for the columns as they are now.
    """

    def __init__(self, cache: Cache, batch_size: int, attention_mask: torch.Tensor | None):
        self.cache = cache
        # A sliding window has to keep what it is told to drop until it is known how much that is.
        cache.activate_past_recording()
        self.attention_mask = attention_mask
        # How far each row has been moved.
        self.moved = [0] * batch_size

    @property
    def is_ragged(self) -> bool:
        return any(self.moved)

    def drop(self, counts: Sequence[int], device: torch.device) -> None:
        """Takes the last `counts[i]` columns of each row i away, and aligns the rows' ends."""
        least = min(counts)
        shifts = [count - least for count in counts]
        if any(shifts):
            self._move_right(torch.tensor(shifts, device=device))
            self.moved = [moved + shift for moved, shift in zip(self.moved, shifts, strict=True)]
        # Also by nothing: a sliding window lets go of what it kept for taking back.
        self.cache.crop(-least)
        if least and self.attention_mask is not None:
            self.attention_mask = self.attention_mask[:, :-least]
        self._trim()

    def select(self, rows: Sequence[int], device: torch.device) -> None:
        """Keeps the given rows only."""
        index = torch.tensor(rows, device=device)
        self.cache.batch_select_indices(index)
        self.moved = [self.moved[row] for row in rows]
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[index]
        self._trim()

    def release(self) -> None:
        """Leaves the cache to others, who will not take anything back."""
        for layer in self_attention_of(self.cache).layers:
            if hasattr(layer, "record_past"):
                layer.record_past = False

    def _move_right(self, shifts: torch.Tensor) -> None:
        if self.attention_mask is None:
            columns = self.cache.get_seq_length()
            self.attention_mask = torch.ones(len(shifts), columns, dtype=torch.long, device=shifts.device)
        places = torch.arange(self.attention_mask.shape[1], device=shifts.device) - shifts[:, None]
        self.attention_mask = self.attention_mask.gather(1, places.clamp(min=0)).masked_fill(places < 0, 0)
        sources = {}
        for layer in self_attention_of(self.cache).layers:
            if layer.get_seq_length() > 0:
                # A sliding window holds fewer columns than there are, and the history has one head.
                shape = layer.keys.shape[:3]
                if shape not in sources:
                    sources[shape] = _places_of_vectors(*shape, shifts.to(layer.keys.device))
                layer.keys, layer.values = (_take(states, sources[shape]) for states in (layer.keys, layer.values))

    def _trim(self) -> None:
        """Removes columns that are without meaning in every row."""
        surplus = min(self.moved)
        if surplus == 0:
            return
        self.attention_mask = self.attention_mask[:, surplus:]
        width = self.attention_mask.shape[1]
        for layer in self_attention_of(self.cache).layers:
            # A history that began later than the cache holds fewer columns, all of them real.
            if layer.get_seq_length() > 0:
                if type(layer) is DynamicSlidingWindowLayer:
                    layer.cumulative_length -= surplus
                layer.keys, layer.values = layer.keys[..., -width:, :], layer.values[..., -width:, :]
        self.moved = [moved - surplus for moved in self.moved]


def _places_of_vectors(batch_size: int, num_heads: int, width: int, shifts: torch.Tensor) -> torch.Tensor:
    """Where, among the vectors of all rows, heads and columns, those of the rows are, row i moved by `shifts[i]`."""
    columns = (torch.arange(width, device=shifts.device) - shifts[:, None]).clamp(min=0)
    blocks = torch.arange(batch_size * num_heads, device=shifts.device).view(batch_size, num_heads, 1) * width
    return (blocks + columns[:, None]).flatten()


def _take(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    # Whole vectors are copied, which is several times as fast as indexing or gathering.
    return states.reshape(-1, states.shape[-1]).index_select(0, places).view(states.shape)
