"""GPT-2 with N-gram heads."""

from transformers import GenerationMixin, GPT2Config, GPT2LMHeadModel

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin


class WDRNgramConfig(NgramConfigMixin, GPT2Config):
    __doc__ = f"""A [`GPT2Config`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_gpt2"


class WDRNgramGPT2LMHeadModel(NgramMixin, GPT2LMHeadModel, GenerationMixin):
    __doc__ = f"""A [`GPT2LMHeadModel`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramConfig
