"""GPT-2 with N-gram heads."""

from typing import ClassVar

from transformers import GPT2Config, GPT2LMHeadModel

from .configuration_wdr_ngram import NgramConfigMixin
from .modeling_wdr_ngram import NgramMixin


class WDRNgramConfig(NgramConfigMixin, GPT2Config):
    __doc__ = f"""A [`GPT2Config`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_gpt2"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [*GPT2Config.keys_to_ignore_at_inference, "head_losses"]


class WDRNgramGPT2LMHeadModel(NgramMixin, GPT2LMHeadModel):
    __doc__ = f"""A [`GPT2LMHeadModel`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config_class = WDRNgramConfig
