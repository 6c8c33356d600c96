"""Gemma, Gemma 2 and Gemma 3 with N-gram heads. Gemma 2 has soft-capped logits."""

from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GenerationMixin,
)

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin


class WDRNgramGemmaConfig(NgramConfigMixin, GemmaConfig):
    __doc__ = f"""A [`GemmaConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_gemma"


class WDRNgramGemmaForCausalLM(NgramMixin, GemmaForCausalLM, GenerationMixin):
    __doc__ = f"""A [`GemmaForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramGemmaConfig


class WDRNgramGemma2Config(NgramConfigMixin, Gemma2Config):
    __doc__ = f"""A [`Gemma2Config`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_gemma2"


class WDRNgramGemma2ForCausalLM(NgramMixin, Gemma2ForCausalLM, GenerationMixin):
    __doc__ = f"""A [`Gemma2ForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramGemma2Config


class WDRNgramGemma3TextConfig(NgramConfigMixin, Gemma3TextConfig):
    __doc__ = f"""A [`Gemma3TextConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_gemma3_text"


class WDRNgramGemma3ForCausalLM(NgramMixin, Gemma3ForCausalLM, GenerationMixin):
    __doc__ = f"""A [`Gemma3ForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramGemma3TextConfig
