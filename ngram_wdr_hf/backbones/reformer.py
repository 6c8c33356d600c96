"""Reformer with N-gram heads: the paper's RF."""

from math import lcm, prod
from typing import Any

import torch
import torch.nn.functional as F
from transformers import ReformerConfig, ReformerLayer, ReformerModelWithLMHead
from transformers.models.reformer.modeling_reformer import ReformerDynamicCache

from ..decoding.history import NgramHistoryLayer
from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin
from ..modeling.checkpoint import logger


class WDRNgramReformerConfig(NgramConfigMixin, ReformerConfig):
    __doc__ = f"""A [`ReformerConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_reformer"
    # A language model that generates; a Reformer is an encoder otherwise.
    is_decoder: bool = True


class NgramReformerCache(ReformerDynamicCache):
    """Reformer's own kind of cache, with the ensemble's history in it."""

    history: NgramHistoryLayer

    @classmethod
    def adopt(cls, cache: ReformerDynamicCache, length: int) -> None:
        """Makes `cache` one of these, of the first `length` tokens: whoever holds it goes on using it."""
        if not isinstance(cache, cls):
            cache.__class__, cache.history = cls, NgramHistoryLayer()
            # Buckets of layers that do not hash are empty.
            cache.buckets_cache = [layer[..., :length] for layer in cache.buckets_cache]
            cache.states_cache = [layer[:, :length] for layer in cache.states_cache]

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        if self.history.get_seq_length() > 0:
            self.history.reorder_cache(beam_idx)


class SeededReformerLayer(ReformerLayer):
    """
    Reformer's layers run twice, and seed torch anew for that with numbers from nowhere, so that no training could be
    repeated. These numbers follow from the seed that was set.
    """

    def _init_attention_seed(self) -> None:
        self.attention_seed = self._draw_seed()

    def _init_feed_forward_seed(self) -> None:
        self.feed_forward_seed = self._draw_seed()

    def _draw_seed(self) -> int:
        seed = int(torch.randint(2**62, ()))
        torch.manual_seed(seed)
        return seed


class WDRNgramReformerModelWithLMHead(NgramMixin, ReformerModelWithLMHead):
    __doc__ = f"""
    A [`ReformerModelWithLMHead`] with N-gram heads. They are as wide as its hidden states, which are twice
    `config.hidden_size`. In training, texts are filled up to the length that its attention and its positions want.
    {NgramMixin.__doc__}"""

    config_class = WDRNgramReformerConfig
    # The cache keeps hash buckets, and cannot be cut.
    _is_stateful = True

    def __init__(self, config: WDRNgramReformerConfig):
        super().__init__(config)
        for layer in self.reformer.encoder.layers:
            layer.__class__ = SeededReformerLayer

    def _ngram_past_length(self, past: ReformerDynamicCache | None) -> int:
        if past is None:
            return 0
        if not isinstance(past, ReformerDynamicCache):
            raise ValueError(
                f"A Reformer has a cache of its own kind, and this is a {type(past).__name__}: begin without one, and "
                "pass on the `past_buckets_states` that come back."
            )
        return past.get_start_idx()

    def _ngram_history(self, past: NgramReformerCache | None) -> NgramHistoryLayer | None:
        return None if past is None else past.history

    def _ngram_backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.LongTensor | None) -> dict[str, Any]:
        if (
            len(inputs[_name_of_tokens(inputs)]) == 1
            or "lsh" not in self.config.attn_layers
            or inputs.get("use_cache") is False
        ):
            return inputs
        # From the cache, stock LSH attention takes the words of all rows from the first one.
        if inputs.get(self.ngram_cache_name) is not None:
            raise ValueError("With LSH attention, Reformer's cache is right for one row only: use `use_cache=False`.")
        logger.warning_once("With LSH attention, Reformer's cache is right for one row only: going on without one.")
        return {**inputs, "use_cache": False}

    def _ngram_run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        name = _name_of_tokens(inputs)
        length, past_length = inputs[name].shape[1], self._ngram_past_length(inputs.get(self.ngram_cache_name))
        if past_length > 0 and length > 1:
            raise ValueError(f"After its prompt, a Reformer reads one token at a time, and got {length}.")
        hidden_states, fields = super()._ngram_run_backbone(
            inputs if past_length > 0 else self._ngram_fill_up(inputs, name)
        )
        if fields.get(self.ngram_cache_name) is not None:
            NgramReformerCache.adopt(fields[self.ngram_cache_name], past_length + length)
        return hidden_states[:, :length], fields

    def _ngram_fill_up(self, inputs: dict[str, Any], name: str) -> dict[str, Any]:
        """
        Reformer does not take any length. In evaluation it fills texts up by itself, but not with a cache, and not
        their positions (it tries to, and fails).
        """
        position_ids, mask = inputs.get("position_ids"), inputs.get("attention_mask")
        length = inputs[name].shape[1]
        missing = self._ngram_full_length(length) - length
        by_itself = not self.training and position_ids is None and inputs.get(self.ngram_cache_name) is None
        if missing <= 0 or by_itself:
            return inputs
        if mask is None:
            mask = torch.ones(inputs[name].shape[:2], dtype=torch.long, device=inputs[name].device)
        filled = {"attention_mask": F.pad(mask, (0, missing))}
        filled[name] = F.pad(inputs[name], (0, 0) * (inputs[name].ndim - 2) + (0, missing))
        if position_ids is not None:
            filled["position_ids"] = F.pad(position_ids, (0, missing))
        return {**inputs, **filled}

    def _ngram_full_length(self, length: int) -> int:
        """The next length that the attention and, in training, the positions take."""
        if self.config.axial_pos_embds and self.training:
            return prod(self.config.axial_pos_shape)
        chunks = {getattr(self.config, f"{kind}_attn_chunk_length") for kind in self.config.attn_layers}
        # Texts shorter than a chunk are attended to as a whole.
        multiple = 1 if length <= min(chunks) else lcm(*chunks)
        return -(-length // multiple) * multiple

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.LongTensor,
        past_key_values: ReformerDynamicCache | None = None,
        attention_mask: torch.Tensor | None = None,
        **kwargs,
    ) -> dict[str, Any]:
        # The stock method drops the mask, and prints a line for every argument that it does not know.
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError(
                "Reformer cannot generate from padded prompts, as its cache knows no padding: generate rows of "
                "different lengths one by one."
            )
        kwargs = {
            name: value for name, value in kwargs.items() if name not in ("is_first_iteration", "next_sequence_length")
        }
        if past_key_values is not None:
            input_ids = input_ids[:, -1:]
        return {"input_ids": input_ids, "past_buckets_states": past_key_values, **kwargs}


def _name_of_tokens(inputs: dict[str, Any]) -> str:
    """The argument that holds the text."""
    return "input_ids" if inputs.get("inputs_embeds") is None else "inputs_embeds"
