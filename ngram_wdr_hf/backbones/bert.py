"""BERT with WDR heads for masked tokens."""

import torch
from transformers import BertConfig, BertForMaskedLM

from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedMixin


class WDRNgramBertConfig(NgramMaskedConfigMixin, BertConfig):
    __doc__ = f"""A [`BertConfig`] with the N-gram fields.\n{NgramMaskedConfigMixin.__doc__}"""

    model_type = "wdr_ngram_bert"


class WDRNgramBertForMaskedLM(NgramMaskedMixin, BertForMaskedLM):
    __doc__ = f"""A [`BertForMaskedLM`] with WDR heads.\n{NgramMaskedMixin.__doc__}"""

    config: WDRNgramBertConfig

    def _ngram_transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.cls.predictions.transform(hidden_states)
