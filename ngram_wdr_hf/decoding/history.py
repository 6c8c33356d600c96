"""The ensemble's history in generation: past hidden states and tokens, kept in the cache."""

import torch
from transformers import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache, StaticLayer

# The cache methods that `generate` and its callers use.
CACHE_METHODS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave", "crop", "reset")


class NgramHistoryLayer(DynamicLayer):
    """
    The ensemble's history, as an additional layer of the key-value cache. Whatever is done to the cache (reorder,
    crop, select, reset) is done to this layer, too.

    `keys` are the hidden states, `(batch_size, 1, T, d)`; `values` are the records, `(batch_size, 1, T, 3)`: token id,
    run length and position.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.values = self.values.to(value_states.dtype)

    def crop(self, tokens_to_remove: int) -> None:
        # A layer cropped to length 0 would keep its batch size and reject batches of another size.
        if abs(tokens_to_remove) >= self.get_seq_length():
            self.reset()
        else:
            super().crop(tokens_to_remove)

    def last_record(self) -> torch.Tensor | None:
        """
        Return the record of each row's last token, `(batch_size, 3)`: token id, run length and position. `None` if the
        history is empty.
        """
        return self.values[:, 0, -1] if self.get_seq_length() > 0 else None

    def extend(self, hidden_states: torch.Tensor, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Append new hidden states `(batch_size, T, d)` and records `(batch_size, T, 3)`. Return the hidden states and
        the records of the whole history, the new ones last.
        """
        keys, values = self.update(hidden_states[:, None], records[:, None])
        return keys[:, 0], values[:, 0]


class StaticNgramHistoryLayer(StaticLayer):
    """
    `NgramHistoryLayer` for static caches. These are never cropped, so it keeps only the last N - 1 positions, in
    tensors of fixed size. `extend` returns the positions kept so far and the new ones.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        # The initial zeros mean a run length of 0: no history.
        self.values = self.values.to(value_states.dtype)
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.values)

    def last_record(self) -> torch.Tensor | None:
        return self.values[:, 0, -1] if self.is_initialized else None

    def extend(self, hidden_states: torch.Tensor, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(hidden_states[:, None], records[:, None])
        states = torch.cat([self.keys[:, 0], hidden_states], dim=1)
        records = torch.cat([self.values[:, 0], records], dim=1)
        # In place: compiled code relies on the addresses.
        self.keys.copy_(states[:, None, -self.max_cache_len :])
        self.values.copy_(records[:, None, -self.max_cache_len :])
        self.cumulative_length.add_(hidden_states.shape[1])
        return states, records


def self_attention_of(cache: Cache | None) -> Cache | None:
    """
    Return the part of a cache that grows with the generated text: the self-attention cache of an encoder-decoder
    model's cache, any other cache itself. `None` for `None`.
    """
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def tokens_in(cache: Cache | None) -> int | torch.Tensor:
    """Return the number of tokens in a cache: 0 for `None`, a tensor for a static cache, an `int` otherwise."""
    if cache is None:
        return 0
    try:
        # Copied, as a static cache counts in place.
        length = cache.get_seq_length() + 0
    except ValueError:  # the cache of a backbone without attention
        length = 0
    if isinstance(length, int) and length == 0:
        # In hybrid backbones some layers stay empty, possibly the first.
        layers = self_attention_of(cache).layers
        length = max([0, *[layer.get_seq_length() for layer in layers if isinstance(layer, CacheLayerMixin)]])
    return length


def can_host_history(cache: object) -> bool:
    """
    Return whether a history layer can be added to a cache. It must be a Transformers `Cache` whose class does not
    override `CACHE_METHODS`: only then do these apply to the added layer, too.
    """
    if not isinstance(cache, Cache):
        return False
    cache_class = type(self_attention_of(cache))
    return all(getattr(cache_class, name) is getattr(Cache, name) for name in CACHE_METHODS)


def history_of(cache: Cache | None, num_heads: int) -> NgramHistoryLayer | StaticNgramHistoryLayer | None:
    """
    Return the history layer of `cache`, added as its last layer if missing. `None` without a cache, or if it has no
    layers yet. In a static cache, the history keeps `num_heads` positions.
    """
    cache = self_attention_of(cache)
    if cache is None or not cache.layers:
        return None
    if not isinstance(cache.layers[-1], (NgramHistoryLayer, StaticNgramHistoryLayer)):
        is_static = any(isinstance(layer, StaticLayer) for layer in cache.layers)
        cache.layers.append(StaticNgramHistoryLayer(num_heads) if is_static else NgramHistoryLayer())
    return cache.layers[-1]
