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
        if not has_text and inputs.get("input_ids") is not None:
            # BART's default decoder input, which the heads need, too: the input shifted to the right.
            inputs = {**inputs, "decoder_input_ids": self.prepare_decoder_input_ids_from_labels(inputs["input_ids"])}
        return inputs


register(WDRNgramBartForConditionalGeneration)
