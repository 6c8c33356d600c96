"""ModernBERT with WDR heads for masked tokens."""

import torch
from transformers import ModernBertConfig, ModernBertForMaskedLM

from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedMixin


class WDRNgramModernBertConfig(NgramMaskedConfigMixin, ModernBertConfig):
    __doc__ = f"""A [`ModernBertConfig`] with the N-gram fields.\n{NgramMaskedConfigMixin.__doc__}"""

    model_type = "wdr_ngram_modernbert"


class WDRNgramModernBertForMaskedLM(NgramMaskedMixin, ModernBertForMaskedLM):
    __doc__ = f"""A [`ModernBertForMaskedLM`] with WDR heads.\n{NgramMaskedMixin.__doc__}"""

    config: WDRNgramModernBertConfig

    def _ngram_transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.head(hidden_states)
