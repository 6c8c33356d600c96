"""GPT-NeoX with N-gram heads."""

from transformers import GenerationMixin, GPTNeoXConfig, GPTNeoXForCausalLM

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin


class WDRNgramGPTNeoXConfig(NgramConfigMixin, GPTNeoXConfig):
    __doc__ = f"""A [`GPTNeoXConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_gpt_neox"


class WDRNgramGPTNeoXForCausalLM(NgramMixin, GPTNeoXForCausalLM, GenerationMixin):
    __doc__ = f"""A [`GPTNeoXForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramGPTNeoXConfig
