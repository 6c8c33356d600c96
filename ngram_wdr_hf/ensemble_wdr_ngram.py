"""The ensemble: the next-word prediction, refined by what the heads said earlier about the same word."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, EncoderDecoderCache, StaticLayer
from transformers.generation import LogitsProcessor, LogitsProcessorList

from .configuration_wdr_ngram import check_fraction

# What `generate` and its users do to a cache.
CACHE_VERBS = ("reorder_cache", "batch_select_indices", "batch_repeat_interleave", "crop", "reset")


def mean_of_past(main: torch.Tensor, past_predictions: Sequence[torch.Tensor], runs: torch.Tensor) -> torch.Tensor:
    r"""
    `1/(N-1) sum_n ê_n[t-n]`, which the ensemble mixes with the main prediction: `ê_ens = (1-λ) h + λ` times it. Where
    head n has no past prediction in the same document, the main prediction stands in for it.

    Args:
        main (`torch.Tensor` of shape `(batch_size, K, d)`): The hidden states `h` of the last K times.
        past_predictions (`Sequence[torch.Tensor]`):
            What each head said before about the word after those times, as `predict_from_past` gives it.
        runs (`torch.LongTensor` of shape `(batch_size, K)`): `run_lengths` of the same times.

    Returns:
        `torch.Tensor` of shape `(batch_size, K, d)`.
    """
    kept = main.shape[1]
    total = 0.0
    for n, prediction in enumerate(past_predictions, start=1):
        if prediction.shape[1] < kept:
            prediction = F.pad(prediction, (0, 0, kept - prediction.shape[1], 0))
        total = torch.where((runs > n)[..., None], prediction, main) + total
    return total / len(past_predictions)


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


class NgramEnsembleLogitsProcessor(LogitsProcessor):
    r"""
    The ensemble as a logits processor, for a model whose own λ is 0:

    ```python
    model.generate(**inputs, logits_processor=[NgramEnsembleLogitsProcessor(model, ensemble_lambda=0.4)])
    ```

    gives the tokens and scores of `model.generate(**inputs, ensemble_lambda=0.4)`, whichever the decoding strategy.
    `generate` of our models reads λ from the processor and lets the forward do the work, where the hidden states and
    the past predictions are; nothing is kept in the processor or the model, and one model can serve several threads.

    Called by hand, `processor(input_ids, scores)` reads `input_ids` anew from the first token on (no padding), and
    returns log-probabilities if `scores` are log-probabilities, logits otherwise.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        ensemble_lambda (`float`): The paper's λ, from 0 to 1.
        encoder_inputs (`Mapping[str, torch.Tensor]`, *optional*):
            For an encoder-decoder model called by hand: what its encoder reads, such as `input_ids` and
            `attention_mask`, a row for each row of the text or for as many of its beams.
    """

    def __init__(self, model, ensemble_lambda: float, encoder_inputs: Mapping[str, torch.Tensor] | None = None):
        if not len(getattr(model, "ngram_heads", ())):
            raise ValueError(
                f"NgramEnsembleLogitsProcessor needs a model with N-gram heads, and this {type(model).__name__} has "
                "none: load or train one with `ngram_size` of at least 2."
            )
        self.model = model
        self.ensemble_lambda = check_fraction("ensemble_lambda", ensemble_lambda)
        self.encoder_inputs = encoder_inputs

    @torch.no_grad()
    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        inputs = {f"{self.model.text_prefix}input_ids": input_ids, "use_cache": False, "logits_to_keep": 1}
        if self.model.config.is_encoder_decoder:
            inputs |= self._encoder_inputs(len(input_ids))
        main = self.model(**inputs, ensemble_lambda=0.0).logits[:, -1]
        refined = self.model(**inputs, ensemble_lambda=self.ensemble_lambda).logits[:, -1]
        # Adding the difference keeps what other processors did to `scores`, a token they forbade included.
        refined = scores + (refined - main).to(scores.dtype)
        are_log_probabilities = bool((scores.logsumexp(-1).abs() < 1e-3).all())
        return refined.log_softmax(-1) if are_log_probabilities else refined

    def _encoder_inputs(self, num_rows: int) -> dict[str, torch.Tensor]:
        if not self.encoder_inputs:
            raise ValueError(
                "Called by hand, the processor of an encoder-decoder model needs `encoder_inputs`, what the encoder "
                "reads; `generate` needs no such help."
            )
        return {
            name: value.repeat_interleave(num_rows // len(value), dim=0) for name, value in self.encoder_inputs.items()
        }


def split_ensemble_processors(
    model, processors: LogitsProcessorList | None
) -> tuple[LogitsProcessorList, float | None]:
    """Separates the ensemble processor, of which there may be one, from the others: they, and its λ."""
    # By name: a checkpoint that brings its own code has its own class of that name.
    name = NgramEnsembleLogitsProcessor.__name__
    others = LogitsProcessorList()
    ensemble_lambda = None
    for processor in processors or ():
        if all(cls.__name__ != name for cls in type(processor).__mro__):
            others.append(processor)
        elif ensemble_lambda is not None:
            raise ValueError(f"Two processors of class {name} were given: one is enough.")
        # A wrapper (PEFT's, say) hands out the heads of the model inside it.
        elif processor.model.ngram_heads is not model.ngram_heads:
            raise ValueError(f"The {name} was made for another model: make one for the model that generates.")
        else:
            ensemble_lambda = processor.ensemble_lambda
    return others, ensemble_lambda
