"""Backbones with N-gram heads: one small file per named class, and `with_ngram_heads` for all others."""

from .bart import WDRNgramBartForConditionalGeneration
from .bert import WDRNgramBertForMaskedLM
from .checks import probe
from .gemma import WDRNgramGemma2ForCausalLM, WDRNgramGemma3ForCausalLM, WDRNgramGemmaForCausalLM
from .gpt2 import WDRNgramGPT2LMHeadModel
from .gpt_neox import WDRNgramGPTNeoXForCausalLM
from .llama import WDRNgramLlamaForCausalLM
from .marian import WDRNgramMarianMTModel
from .mistral import WDRNgramMistralForCausalLM
from .modernbert import WDRNgramModernBertForMaskedLM
from .opt import WDRNgramOPTForCausalLM
from .qwen3 import WDRNgramQwen3ForCausalLM
from .reformer import WDRNgramReformerModelWithLMHead
from .registry import class_by_name, ngram_class, register_named
from .t5 import WDRNgramT5ForConditionalGeneration
from .tensorized import WDRNgramTensorizedTransformerLMHeadModel
from .tensorized_model import TensorizedTransformerLMHeadModel
from .with_heads import with_ngram_heads

__all__ = ["ngram_class", "probe", "with_ngram_heads"]

for _model in (
    TensorizedTransformerLMHeadModel,
    WDRNgramBartForConditionalGeneration,
    WDRNgramBertForMaskedLM,
    WDRNgramGPT2LMHeadModel,
    WDRNgramGPTNeoXForCausalLM,
    WDRNgramGemma2ForCausalLM,
    WDRNgramGemma3ForCausalLM,
    WDRNgramGemmaForCausalLM,
    WDRNgramLlamaForCausalLM,
    WDRNgramMarianMTModel,
    WDRNgramMistralForCausalLM,
    WDRNgramModernBertForMaskedLM,
    WDRNgramOPTForCausalLM,
    WDRNgramQwen3ForCausalLM,
    WDRNgramReformerModelWithLMHead,
    WDRNgramT5ForConditionalGeneration,
    WDRNgramTensorizedTransformerLMHeadModel,
):
    register_named(_model)


def __getattr__(name: str) -> type:
    """
    Return a class with heads or its configuration by its name, `backbones.WDRNgramOlmo2ForCausalLM`, created if
    necessary. `pickle` looks up classes in this way. Raise an `AttributeError` for any other name.
    """
    found = class_by_name(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
