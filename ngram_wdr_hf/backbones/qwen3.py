"""Qwen3 with N-gram heads."""

from transformers import GenerationMixin, Qwen3Config, Qwen3ForCausalLM

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin


class WDRNgramQwen3Config(NgramConfigMixin, Qwen3Config):
    __doc__ = f"""A [`Qwen3Config`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_qwen3"


class WDRNgramQwen3ForCausalLM(NgramMixin, Qwen3ForCausalLM, GenerationMixin):
    __doc__ = f"""A [`Qwen3ForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramQwen3Config
