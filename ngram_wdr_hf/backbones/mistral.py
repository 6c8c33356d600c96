"""Mistral with N-gram heads."""

from transformers import GenerationMixin, MistralConfig, MistralForCausalLM

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin


class WDRNgramMistralConfig(NgramConfigMixin, MistralConfig):
    __doc__ = f"""A [`MistralConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_mistral"


class WDRNgramMistralForCausalLM(NgramMixin, MistralForCausalLM, GenerationMixin):
    __doc__ = f"""A [`MistralForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramMistralConfig
