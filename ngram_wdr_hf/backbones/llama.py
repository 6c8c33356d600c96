"""Llama with N-gram heads."""

from transformers import GenerationMixin, LlamaConfig, LlamaForCausalLM

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin


class WDRNgramLlamaConfig(NgramConfigMixin, LlamaConfig):
    __doc__ = f"""A [`LlamaConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_llama"


class WDRNgramLlamaForCausalLM(NgramMixin, LlamaForCausalLM, GenerationMixin):
    __doc__ = f"""A [`LlamaForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramLlamaConfig
