"""ModernBERT with WDR heads for masked tokens."""

import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM

from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedLMOutput, NgramMaskedMixin
from .registry import register


class WDRNgramModernBertConfig(NgramMaskedConfigMixin, ModernBertConfig):
    """A [`ModernBertConfig`] with the N-gram fields: see [`NgramMaskedConfigMixin`]."""

    model_type = "wdr_ngram_modernbert"


class WDRNgramModernBertForMaskedLM(NgramMaskedMixin, ModernBertForMaskedLM):
    """A [`ModernBertForMaskedLM`] with WDR heads: see [`NgramMaskedMixin`]."""

    config: WDRNgramModernBertConfig

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> NgramMaskedLMOutput:
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds}
        inputs |= {"attention_mask": attention_mask, "position_ids": position_ids}
        return self.ngram_forward(inputs, labels, **kwargs)

    def _ngram_transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.head(hidden_states)


register(WDRNgramModernBertForMaskedLM)
