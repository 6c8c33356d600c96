"""T5 with N-gram heads."""

from typing import Any, ClassVar

import torch
from transformers import GenerationMixin, PreTrainedModel, T5Config, T5ForConditionalGeneration, T5Model

from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from .registry import register


class NgramT5Mixin(NgramSeq2SeqMixin):
    """
    [`NgramSeq2SeqMixin`] for the T5 family. These classes have no base model as a submodule, use relative positions,
    and may scale the decoder's outputs before the output embedding.
    """

    # The base model class, whose forward runs on the parts of this class.
    ngram_base_class: ClassVar[type[PreTrainedModel]]
    # Relative positions do not change when a batch row is shifted.
    ngram_rows_can_move = True
    # Whether tied embeddings imply scaled outputs, for configurations without `scale_decoder_outputs`.
    ngram_scales_if_tied = False

    def _ngram_head_deviation(self) -> float:
        # T5 initializes layers by their widths.
        return self.config.initializer_factor * self.config.d_model**-0.5

    def _ngram_run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        inputs = {name: value for name, value in inputs.items() if name != "decoder_position_ids"}
        fields = dict(self.ngram_base_class.forward(self, **inputs, return_dict=True))
        hidden_states = fields.pop("last_hidden_state")
        scales_if_tied = self.ngram_scales_if_tied and self.config.tie_word_embeddings
        if getattr(self.config, "scale_decoder_outputs", scales_if_tied):
            hidden_states = hidden_states * self.config.d_model**-0.5
        return hidden_states, fields


class WDRNgramT5Config(NgramSeq2SeqConfigMixin, T5Config):
    """A [`T5Config`] with the N-gram fields: see [`NgramSeq2SeqConfigMixin`]."""

    model_type = "wdr_ngram_t5"


class WDRNgramT5ForConditionalGeneration(NgramT5Mixin, T5ForConditionalGeneration, GenerationMixin):
    """A [`T5ForConditionalGeneration`] with N-gram heads: see [`NgramSeq2SeqMixin`]."""

    config: WDRNgramT5Config
    ngram_base_class = T5Model


register(WDRNgramT5ForConditionalGeneration)
