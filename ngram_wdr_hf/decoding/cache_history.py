"""The ensemble's history in generation: past hidden states and tokens, kept in the cache."""

import torch
from transformers import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache, StaticLayer
from transformers.cache_utils import DynamicSlidingWindowLayer, StaticSlidingWindowLayer

# The cache methods that `generate` and its callers use.
CACHE_METHODS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave", "crop", "reset")


class NgramHistory(DynamicLayer):
    """
    The ensemble's history: a cache layer that rides on the first one of the cache's own, a `HistoryHost`. `keys` are
    the hidden states, `(batch_size, 1, T, d)`; `values` are the records, `(batch_size, 1, T, 3)`: token id, run length
    and position. Its token i is in column `start + i` of the cache, which has `num_columns`. Tokens that were read
    without the ensemble are in the cache, but not in the history, which begins anew after them.
    """

    def __init__(self):
        super().__init__()
        self.start = self.num_columns = 0

    def reset(self) -> None:
        # Up to 5.17, Transformers keeps the tensors and their length.
        self.keys = self.values = None
        self.is_initialized = False
        self.start = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.values = self.values.to(value_states.dtype)

    def crop(self, tokens_to_remove: int) -> None:
        # A layer cropped to length 0 would keep its batch size and reject batches of another size.
        if abs(tokens_to_remove) >= self.get_seq_length():
            self.reset()
        else:
            super().crop(tokens_to_remove)

    def crop_to(self, num_columns: int) -> None:
        """Remove the tokens that a cache of this length no longer has."""
        self.crop(min(0, num_columns - self.end))

    @property
    def end(self) -> int:
        """The column after its last token."""
        return self.start + self.get_seq_length()

    def last_record(self) -> torch.Tensor | None:
        """Return the record of each row's last token, `(batch_size, 3)`; `None` if the history is empty."""
        return self.values[:, 0, -1] if self.get_seq_length() > 0 else None

    def extend(self, hidden_states: torch.Tensor, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Append hidden states `(batch_size, T, d)` and records `(batch_size, T, 3)`. Return those of all tokens."""
        column = self.num_columns - hidden_states.shape[1]
        if column > self.end:
            self.reset()
            self.start = column
        keys, values = self.update(hidden_states[:, None], records[:, None])
        return keys[:, 0], values[:, 0]


class StaticNgramHistory(StaticLayer):
    """`NgramHistory` for static caches, which are never cropped: the last N - 1 positions in tensors of fixed size."""

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


class HistoryHost:
    """
    Mixin for the cache layer that the history rides on: whatever is done to the layer is done to the history, but for
    `prefetch`, which is left to `history_of`.
    """

    # A layer type in Transformers' registry stays with the stock class.
    _layer_type = None
    ngram_history: NgramHistory | StaticNgramHistory

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(beam_idx)
        self.ngram_history.reorder_cache(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self.ngram_history.batch_select_indices(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self.ngram_history.batch_repeat_interleave(repeats)

    def crop(self, tokens_to_remove: int) -> None:
        knows_length = length_of(self) > 0
        super().crop(tokens_to_remove)
        if knows_length:
            self.ngram_history.crop_to(length_of(self))
        else:
            self.ngram_history.crop(tokens_to_remove)

    def reset(self) -> None:
        super().reset()
        self.ngram_history.reset()

    def offload(self) -> None:
        super().offload()
        self.ngram_history.offload()

    def __reduce__(self) -> tuple:
        # For `pickle`, as the class may not exist yet where it is loaded.
        return empty_host, (stock_class_of(self),), vars(self)


# Written out, as compiled code cannot create classes, and Transformers' exporter looks for them in this module.
class DynamicHost(HistoryHost, DynamicLayer): ...


class DynamicSlidingWindowHost(HistoryHost, DynamicSlidingWindowLayer): ...


class StaticHost(HistoryHost, StaticLayer): ...


class StaticSlidingWindowHost(HistoryHost, StaticSlidingWindowLayer): ...


HOSTS = (DynamicHost, DynamicSlidingWindowHost, StaticHost, StaticSlidingWindowHost)
HOST_CLASSES: dict[type, type] = {host.__mro__[2]: host for host in HOSTS}


def empty_host(layer_class: type) -> HistoryHost:
    """Return a host of the given layer class without its state."""
    if layer_class not in HOST_CLASSES:
        HOST_CLASSES[layer_class] = type(f"{layer_class.__name__}Host", (HistoryHost, layer_class), {})
    return object.__new__(HOST_CLASSES[layer_class])


def stock_class_of(layer: object) -> type:
    """Return the class of a cache layer, without the history if it hosts one."""
    # By attribute, as a checkpoint's own code has another `HistoryHost`.
    return type(layer).__mro__[2] if hasattr(layer, "ngram_history") else type(layer)


def self_attention_of(cache: Cache | None) -> Cache | None:
    """Return the part of a cache that grows with the generated text; `None` for `None`."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def length_of(layer: object) -> int | torch.Tensor:
    """Return the number of tokens in a cache layer; 0 for one without attention, which does not count them."""
    return layer.get_seq_length() if isinstance(layer, CacheLayerMixin) else 0


def layers_and_history(cache: Cache) -> list:
    """Return the layers of a cache that grow with the text, and the history if there is one."""
    layers = self_attention_of(cache).layers
    return [*layers, *[layer.ngram_history for layer in layers[:1] if hasattr(layer, "ngram_history")]]


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
        length = max([0, *map(length_of, layers_and_history(cache))])
    return length


def can_host_history(cache: object) -> bool:
    """Return whether the methods of a cache are Transformers' own, which reach the first layer and its history."""
    if not isinstance(cache, Cache):
        return False
    cache_class = type(self_attention_of(cache))
    return all(getattr(cache_class, name) is getattr(Cache, name) for name in CACHE_METHODS)


def history_of(cache: Cache | None, num_heads: int, device: torch.device) -> NgramHistory | StaticNgramHistory | None:
    """
    Return the history in `cache`, on the given device, of `num_heads` positions if it is static. The first layer
    becomes a host if it is none. `None` without a cache, or if it has no layers yet.
    """
    cache = self_attention_of(cache)
    if cache is None or not cache.layers:
        return None
    layer = cache.layers[0]
    if not hasattr(layer, "ngram_history"):
        # A new object, as compiled code cannot change the class of an object.
        cache.layers[0] = host = empty_host(type(layer))
        vars(host).update(vars(layer))
        is_static = any(isinstance(layer, StaticLayer) for layer in cache.layers)
        host.ngram_history = StaticNgramHistory(num_heads) if is_static else NgramHistory()
    history = cache.layers[0].ngram_history
    if not isinstance(history, StaticLayer):
        history.num_columns = length_of(cache.layers[0])
    if history.is_initialized:
        # It may have been offloaded, or the cache may have been moved.
        history.device = device
        history.prefetch()
    return history
