"""BERT with WDR heads for masked tokens."""

import torch
from transformers import BertConfig, BertForMaskedLM

from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedLMOutput, NgramMaskedMixin
from .registry import register


class WDRNgramBertConfig(NgramMaskedConfigMixin, BertConfig):
    """A [`BertConfig`] with the N-gram fields: see [`NgramMaskedConfigMixin`]."""

    model_type = "wdr_ngram_bert"


class WDRNgramBertForMaskedLM(NgramMaskedMixin, BertForMaskedLM):
    """A [`BertForMaskedLM`] with WDR heads: see [`NgramMaskedMixin`]."""

    config: WDRNgramBertConfig

    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        **kwargs,
    ) -> NgramMaskedLMOutput:
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids}
        inputs |= {"attention_mask": attention_mask, "position_ids": position_ids}
        inputs |= {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        return self.ngram_forward(inputs, labels, **kwargs)

    def _ngram_transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.cls.predictions.transform(hidden_states)


register(WDRNgramBertForMaskedLM)
