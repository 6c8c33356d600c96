"""BART with N-gram heads."""

from typing import Any

import torch
from transformers import BartConfig, BartForConditionalGeneration, GenerationMixin

from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from .registry import register


class WDRNgramBartConfig(NgramSeq2SeqConfigMixin, BartConfig):
    """A [`BartConfig`] with the N-gram fields: see [`NgramSeq2SeqConfigMixin`]."""

    model_type = "wdr_ngram_bart"


class WDRNgramBartForConditionalGeneration(NgramSeq2SeqMixin, BartForConditionalGeneration, GenerationMixin):
    """A [`BartForConditionalGeneration`] with N-gram heads: see [`NgramSeq2SeqMixin`]."""

    config: WDRNgramBartConfig

    def _ngram_backbone_inputs(self, inputs: dict[str, Any], next_tokens: torch.Tensor | None) -> dict[str, Any]:
        inputs = super()._ngram_backbone_inputs(inputs, next_tokens)
        has_text = any(inputs.get(name) is not None for name in ("decoder_input_ids", "decoder_inputs_embeds"))
        if has_text or inputs.get("input_ids") is None:
            return inputs
        # BART's default decoder input, which the heads need, too: the input shifted to the right.
        return {**inputs, "decoder_input_ids": self._ngram_shift_right(inputs["input_ids"])}


register(WDRNgramBartForConditionalGeneration)
