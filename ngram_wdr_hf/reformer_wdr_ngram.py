"""Reformer with N-gram heads: the paper's RF."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from transformers import ReformerConfig, ReformerModelWithLMHead
from transformers.models.reformer.modeling_reformer import ReformerDynamicCache

from .configuration_wdr_ngram import NgramConfigMixin
from .ensemble_wdr_ngram import NgramHistoryLayer
from .modeling_wdr_ngram import NgramMixin


class WDRNgramReformerConfig(NgramConfigMixin, ReformerConfig):
    __doc__ = f"""A [`ReformerConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_reformer"
    # A language model that generates; a Reformer is an encoder otherwise.
    is_decoder: bool = True


class NgramReformerCache(ReformerDynamicCache):
    """Reformer's own kind of cache, with the ensemble's history in it."""

    def __init__(self, cache: ReformerDynamicCache):
        super().__init__(zip(cache.buckets_cache, cache.states_cache, strict=True))
        self.history = NgramHistoryLayer()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        if self.history.get_seq_length() > 0:
            self.history.reorder_cache(beam_idx)


class WDRNgramReformerModelWithLMHead(NgramMixin, ReformerModelWithLMHead):
    __doc__ = f"""
    A [`ReformerModelWithLMHead`] with N-gram heads. They are as wide as its hidden states, which are twice
    `config.hidden_size`. In training, texts are filled up to the length that its attention and its positions want.
    {NgramMixin.__doc__}"""

    config_class = WDRNgramReformerConfig
    # The cache keeps hash buckets, and cannot be cut.
    _is_stateful = True

    def _past_length(self, past: ReformerDynamicCache | None) -> int:
        return 0 if past is None else past.get_start_idx()

    def _history(self, past: NgramReformerCache | None) -> NgramHistoryLayer | None:
        return None if past is None else past.history

    def _run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        name = "input_ids" if inputs.get("inputs_embeds") is None else "inputs_embeds"
        length = inputs[name].shape[1]
        hidden_states, fields = super()._run_backbone(self._fill_up(inputs, name))
        cache = fields.get(self.cache_name)
        if cache is not None and not isinstance(cache, NgramReformerCache):
            fields[self.cache_name] = NgramReformerCache(cache)
        return hidden_states[:, :length], fields

    def _fill_up(self, inputs: dict[str, Any], name: str) -> dict[str, Any]:
        """In training, Reformer does not take any length; in evaluation, it fills texts up by itself."""
        length = inputs[name].shape[1]
        missing = self._training_length(length) - length if self.training else 0
        if missing <= 0:
            return inputs
        mask = inputs.get("attention_mask")
        mask = (
            torch.ones(inputs[name].shape[:2], dtype=torch.long, device=inputs[name].device) if mask is None else mask
        )
        filled = {"attention_mask": F.pad(mask, (0, missing))}
        filled[name] = F.pad(inputs[name], (0, 0) * (inputs[name].ndim - 2) + (0, missing))
        if inputs.get("position_ids") is not None:
            filled["position_ids"] = F.pad(inputs["position_ids"], (0, missing))
        return {**inputs, **filled}

    def _training_length(self, length: int) -> int:
        if self.config.axial_pos_embds:
            return prod(self.config.axial_pos_shape)
        chunks = {
            kind: getattr(self.config, f"{kind}_attn_chunk_length") for kind in set(self.config.attn_layers)
        }.values()
        # Texts shorter than a chunk are attended to as a whole.
        multiple = 1 if length <= min(chunks) else torch.lcm(*map(torch.tensor, (min(chunks), max(chunks)))).item()
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
