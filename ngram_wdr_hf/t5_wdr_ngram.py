"""T5 with N-gram heads."""

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration, T5Model, initialization

from .seq2seq_wdr_ngram import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin


class WDRNgramT5Config(NgramSeq2SeqConfigMixin, T5Config):
    __doc__ = f"""A [`T5Config`] with the N-gram fields.\n{NgramSeq2SeqConfigMixin.__doc__}"""

    model_type = "wdr_ngram_t5"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [*T5Config.keys_to_ignore_at_inference, "head_losses"]


class WDRNgramT5ForConditionalGeneration(NgramSeq2SeqMixin, T5ForConditionalGeneration):
    __doc__ = f"""A [`T5ForConditionalGeneration`] with N-gram heads.\n{NgramSeq2SeqMixin.__doc__}"""

    config_class = WDRNgramT5Config

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        # T5 initialises layers by their widths, and those that it does not know with a deviation of 1. The backbone is
        # made, and initialised, before the heads are.
        heads = getattr(self, "ngram_heads", nn.ModuleList())
        if isinstance(module, nn.Linear) and any(module is part for part in heads.modules()):
            initialization.normal_(module.weight, std=self.config.initializer_factor * self.config.d_model**-0.5)

    def _run_backbone(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        # Relative positions do not ask where a token stands.
        inputs = {name: value for name, value in inputs.items() if name != "decoder_position_ids"}
        # This class has no base model inside it, but all that a base model is made of.
        fields = dict(T5Model.forward(self, **inputs, return_dict=True))
        hidden_states = fields.pop("last_hidden_state")
        if self.config.scale_decoder_outputs:
            hidden_states = hidden_states * self.model_dim**-0.5
        return hidden_states, fields
