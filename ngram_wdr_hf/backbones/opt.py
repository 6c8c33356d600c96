"""OPT with N-gram heads."""

from transformers import GenerationMixin, OPTConfig, OPTForCausalLM

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin


class WDRNgramOPTConfig(NgramConfigMixin, OPTConfig):
    __doc__ = f"""An [`OPTConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_opt"


class WDRNgramOPTForCausalLM(NgramMixin, OPTForCausalLM, GenerationMixin):
    __doc__ = f"""An [`OPTForCausalLM`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramOPTConfig
