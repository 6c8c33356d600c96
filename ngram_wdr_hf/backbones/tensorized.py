"""The Tensorized Transformer with N-gram heads: the paper's TT."""

from transformers import GenerationMixin

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramMixin
from .tensorized_model import TensorizedTransformerConfig, TensorizedTransformerLMHeadModel


class WDRNgramTensorizedTransformerConfig(NgramConfigMixin, TensorizedTransformerConfig):
    __doc__ = f"""A [`TensorizedTransformerConfig`] with the N-gram fields.\n{NgramConfigMixin.__doc__}"""

    model_type = "wdr_ngram_tensorized_transformer"


class WDRNgramTensorizedTransformerLMHeadModel(NgramMixin, TensorizedTransformerLMHeadModel, GenerationMixin):
    __doc__ = f"""A [`TensorizedTransformerLMHeadModel`] with N-gram heads.\n{NgramMixin.__doc__}"""

    config: WDRNgramTensorizedTransformerConfig
