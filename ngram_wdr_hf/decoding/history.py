"""What the ensemble remembers while a text is generated: past hidden states and tokens, kept in the cache."""

import torch
from transformers import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache, StaticLayer

# What `generate` and its users do to a cache.
CACHE_VERBS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave", "crop", "reset")


class NgramHistoryLayer(DynamicLayer):
    """
    What the ensemble remembers, as one more layer of the key-value cache, so that whatever happens to the cache
    (reordering, cropping, selection, reset) happens to it.

    `keys` are the hidden states, `(batch_size, 1, T, d)`; `values` the tokens' records, `(batch_size, 1, T, 3)`:
    token id, run length and position.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.values = self.values.to(value_states.dtype)

    def crop(self, tokens_to_remove: int) -> None:
        # An empty layer would keep its batch size through whatever happens next.
        if abs(tokens_to_remove) >= self.get_seq_length():
            self.reset()
        else:
            super().crop(tokens_to_remove)

    def last_record(self) -> torch.Tensor | None:
        """The record of the last token, `(batch_size, 3)`; `None` if there is none."""
        return self.values[:, 0, -1] if self.get_seq_length() > 0 else None

    def extend(self, hidden_states: torch.Tensor, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds new hidden states and records; returns them with what there is before them."""
        keys, values = self.update(hidden_states[:, None], records[:, None])
        return keys[:, 0], values[:, 0]


class StaticNgramHistoryLayer(StaticLayer):
    """`NgramHistoryLayer` for static caches, which are not cropped: it keeps as much as the heads look back on."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        # Zeros are what a token without a past has: a run of length 0.
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
        # In place: compiled code knows the addresses.
        self.keys.copy_(states[:, None, -self.max_cache_len :])
        self.values.copy_(records[:, None, -self.max_cache_len :])
        self.cumulative_length.add_(hidden_states.shape[1])
        return states, records


def self_attention_of(cache: Cache | None) -> Cache | None:
    """The part of a cache that grows with the text."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def tokens_in(cache: Cache | None) -> int | torch.Tensor:
    """How many tokens a cache holds."""
    if cache is None:
        return 0
    try:
        # A static cache counts in place, so the count is copied.
        length = cache.get_seq_length() + 0
    except ValueError:  # the cache of a backbone without attention
        length = 0
    if isinstance(length, int) and length == 0:
        # Hybrid backbones do not use all layers, the first perhaps among them.
        layers = self_attention_of(cache).layers
        length = max([0, *[layer.get_seq_length() for layer in layers if isinstance(layer, CacheLayerMixin)]])
    return length


def can_host_history(cache: object) -> bool:
    """Whether what happens to a cache happens to a layer that is added to it."""
    if not isinstance(cache, Cache):
        return False
    kind = type(self_attention_of(cache))
    return all(getattr(kind, verb) is getattr(Cache, verb) for verb in CACHE_VERBS)


def history_of(cache: Cache | None, num_heads: int) -> NgramHistoryLayer | StaticNgramHistoryLayer | None:
    """The history that rides in `cache`, put there if need be; `None` without a cache in use."""
    cache = self_attention_of(cache)
    if cache is None or not cache.layers:
        return None
    if not isinstance(cache.layers[-1], (NgramHistoryLayer, StaticNgramHistoryLayer)):
        is_static = any(isinstance(layer, StaticLayer) for layer in cache.layers)
        cache.layers.append(StaticNgramHistoryLayer(num_heads) if is_static else NgramHistoryLayer())
    return cache.layers[-1]
