"""Reformer with N-gram heads, the paper's RF."""

import copy
from collections.abc import Mapping, Sequence
from math import lcm, prod
from typing import Any

import torch
import torch.nn.functional as F
from transformers import GenerationMixin, ReformerConfig, ReformerLayer, ReformerModelWithLMHead
from transformers.models.reformer.modeling_reformer import LSHSelfAttention, ReformerDynamicCache

from ..decoding.cache_history import NgramHistory
from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramCausalLMOutput, NgramMixin
from .registry import register


class WDRNgramReformerConfig(NgramConfigMixin, ReformerConfig):
    """A [`ReformerConfig`] with the N-gram fields: see [`NgramConfigMixin`]."""

    model_type = "wdr_ngram_reformer"
    # A causal language model; the stock default is an encoder.
    is_decoder: bool = True


class NgramReformerCache(ReformerDynamicCache):
    """Reformer's own cache with the ensemble's history, which is reordered together with the cache."""

    history: NgramHistory

    @classmethod
    def adopt(cls, cache: Any, length: int) -> None:
        """Give a stock cache an empty history, and drop its padding after the first `length` tokens."""
        if not isinstance(cache, cls):
            # The object stays the same, because its owner passes it in again.
            cache.__class__, cache.history = cls, NgramHistory()
            cache.buckets_cache = [layer[..., :length] for layer in cache.buckets_cache]
            cache.states_cache = [layer[:, :length] for layer in cache.states_cache]

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        super().reorder_cache(beam_idx)
        if self.history.get_seq_length() > 0:
            self.history.reorder_cache(beam_idx)


class SeededReformerLayer(ReformerLayer):
    """
    Reformer layer with reproducible seeds. In training, a layer runs again in the backward pass and needs the seed of
    its first run, which stock layers do not draw from torch's generator.
    """

    def _init_attention_seed(self) -> None:
        self.attention_seed = self._draw_seed()

    def _init_feed_forward_seed(self) -> None:
        self.feed_forward_seed = self._draw_seed()

    def _draw_seed(self) -> int:
        seed = int(torch.randint(2**62, ()))
        torch.manual_seed(seed)
        return seed


class SeededLSHSelfAttention(LSHSelfAttention):
    """
    LSH attention whose dropout does not depend on the hashing. When a layer runs again in the backward pass, with the
    buckets of its first run, stock attention draws no rotations and so drops out other values: the layer's input is
    reconstructed wrongly, and the gradients of all layers below are wrong.
    """

    def _hash_vectors(self, vectors: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        devices = [vectors.device] if vectors.is_cuda else []
        with torch.random.fork_rng(devices, enabled=self.training):
            return super()._hash_vectors(vectors, *args, **kwargs)


class WDRNgramReformerModelWithLMHead(NgramMixin, ReformerModelWithLMHead, GenerationMixin):
    """
    A [`ReformerModelWithLMHead`] with N-gram heads: see [`NgramMixin`]. They are as wide as the hidden states, twice
    `config.hidden_size`. In training, inputs are padded to the length that attention and axial positions need.
    """

    config: WDRNgramReformerConfig
    # The cache holds hash buckets and cannot be cropped.
    _is_stateful = True

    ngram_cache_name = "past_buckets_states"

    def forward(  # pyrefly: ignore[bad-override]
        self,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        num_hashes: int | None = None,
        past_buckets_states: ReformerDynamicCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        ensemble_lambda: float | Sequence[float] | None = None,
        ensemble_weights: Sequence[float] | Sequence[Sequence[float]] | None = None,
        last_hidden_state: torch.Tensor | None = None,
        **kwargs,
    ) -> NgramCausalLMOutput:
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "num_hashes": num_hashes}
        inputs |= {"attention_mask": attention_mask, "position_ids": position_ids}
        inputs |= {"past_buckets_states": past_buckets_states, "use_cache": use_cache}
        inputs |= {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        own = (ensemble_lambda, ensemble_weights, last_hidden_state)
        return self.ngram_forward(inputs, labels, logits_to_keep, *own, return_dict=return_dict, **kwargs)

    def _ngram_add_heads(self) -> None:
        # New modules would draw other initial weights than the stock model's.
        for module in self.modules():
            if isinstance(module, ReformerLayer):
                module.__class__ = SeededReformerLayer
            elif isinstance(module, LSHSelfAttention):
                module.__class__ = SeededLSHSelfAttention
        super()._ngram_add_heads()

    def _ngram_past_length(self, past: Any) -> int:
        if past is None:
            return 0
        if not isinstance(past, ReformerDynamicCache):
            raise ValueError(f"`past_buckets_states` must be a ReformerDynamicCache, got a {type(past).__name__}.")
        return past.get_start_idx()

    def _ngram_history(self, past: NgramReformerCache | None, device: torch.device) -> NgramHistory | None:
        return None if past is None else past.history

    def _ngram_backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.Tensor | None) -> dict[str, Any]:
        past, use_cache = inputs.get(self.ngram_cache_name), inputs.get("use_cache")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        num_rows = len(inputs[_text_argument(inputs)])
        # Stock LSH attention reads the cached tokens of the first row for all rows.
        if num_rows > 1 and "lsh" in self.config.attn_layers:
            if past is not None:
                raise ValueError(
                    f"`{self.ngram_cache_name}` with LSH attention supports a single row, got {num_rows}: pass the "
                    "rows one by one."
                )
            return {**inputs, "use_cache": False}
        if past is not None and not use_cache:
            # The backbone then reads the cache without extending it, and so does the ensemble.
            copied: Any = copy.copy(past)
            NgramReformerCache.adopt(copied, self._ngram_past_length(past))
            copied.history = copy.copy(copied.history)
            return {**inputs, self.ngram_cache_name: copied}
        return inputs

    def _ngram_run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        name = _text_argument(inputs)
        length, past_length = inputs[name].shape[1], self._ngram_past_length(inputs.get(self.ngram_cache_name))
        if past_length > 0 and length > 1:
            raise ValueError(f"`{name}` must have one token per call after the prompt, got {length}.")
        hidden_states, fields = super()._ngram_run_backbone(
            inputs if past_length > 0 else self._ngram_pad_inputs(inputs, name)
        )
        if fields.get(self.ngram_cache_name) is not None:
            NgramReformerCache.adopt(fields[self.ngram_cache_name], past_length + length)
        return hidden_states[:, :length], fields

    def _ngram_pad_inputs(self, inputs: dict[str, Any], name: str) -> dict[str, Any]:
        """
        Return `inputs` with the text (the argument `name`), its mask and its positions padded at the end to a length
        that Reformer supports. The stock class pads only in evaluation without cache and positions.
        """
        position_ids, mask = inputs.get("position_ids"), inputs.get("attention_mask")
        length = inputs[name].shape[1]
        num_padding = self._ngram_padded_length(length) - length
        is_padded_by_stock = not self.training and position_ids is None and inputs.get(self.ngram_cache_name) is None
        if num_padding <= 0 or is_padded_by_stock:
            return inputs
        if mask is None:
            mask = torch.ones(inputs[name].shape[:2], dtype=torch.long, device=inputs[name].device)
        padded = {"attention_mask": F.pad(mask, (0, num_padding))}
        padded[name] = F.pad(inputs[name], (0, 0) * (inputs[name].ndim - 2) + (0, num_padding))
        if position_ids is not None:
            padded["position_ids"] = F.pad(position_ids, (0, num_padding))
        return {**inputs, **padded}

    def _ngram_padded_length(self, length: int) -> int:
        """Return the smallest supported length from `length` on."""
        # In training, axial positions support only one length.
        if self.config.axial_pos_embds and self.training:
            return prod(self.config.axial_pos_shape)
        chunks = {getattr(self.config, f"{kind}_attn_chunk_length") for kind in self.config.attn_layers}
        # Attention over at most one chunk is not chunked, and supports any length.
        multiple = 1 if length <= min(chunks) else lcm(*chunks)
        return -(-length // multiple) * multiple

    # The arguments that the stock class has.
    def prepare_inputs_for_generation(  # pyrefly: ignore[bad-override]
        self,
        input_ids: torch.Tensor,
        past_key_values: ReformerDynamicCache | None = None,
        attention_mask: torch.Tensor | None = None,
        ngram_ensemble: Mapping[str, Any] | None = None,
        **kwargs,
    ) -> dict[str, Any]:
        # The stock method drops the mask and prints a warning for every unknown argument.
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError(
                "`attention_mask` has padding, which Reformer's cache does not support: generate row by row."
            )
        for name in ("is_first_iteration", "next_sequence_length"):
            kwargs.pop(name, None)
        if past_key_values is not None:
            input_ids = input_ids[:, -1:]
        return {"input_ids": input_ids, "past_buckets_states": past_key_values, **kwargs, **(ngram_ensemble or {})}


def _text_argument(inputs: dict[str, Any]) -> str:
    """Return the name of the argument that holds the text: `inputs_embeds` if given, `input_ids` otherwise."""
    return "input_ids" if inputs.get("inputs_embeds") is None else "inputs_embeds"


register(WDRNgramReformerModelWithLMHead)
