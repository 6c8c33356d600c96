"""N-gram and word-difference (WDR) prediction for Hugging Face language models."""

from .backbones.bart import WDRNgramBartConfig, WDRNgramBartForConditionalGeneration
from .backbones.bert import WDRNgramBertConfig, WDRNgramBertForMaskedLM
from .backbones.gemma import (
    WDRNgramGemma2Config,
    WDRNgramGemma2ForCausalLM,
    WDRNgramGemma3ForCausalLM,
    WDRNgramGemma3TextConfig,
    WDRNgramGemmaConfig,
    WDRNgramGemmaForCausalLM,
)
from .backbones.gpt2 import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from .backbones.gpt_neox import WDRNgramGPTNeoXConfig, WDRNgramGPTNeoXForCausalLM
from .backbones.llama import WDRNgramLlamaConfig, WDRNgramLlamaForCausalLM
from .backbones.marian import WDRNgramMarianConfig, WDRNgramMarianMTModel
from .backbones.mistral import WDRNgramMistralConfig, WDRNgramMistralForCausalLM
from .backbones.modernbert import WDRNgramModernBertConfig, WDRNgramModernBertForMaskedLM
from .backbones.opt import WDRNgramOPTConfig, WDRNgramOPTForCausalLM
from .backbones.qwen3 import WDRNgramQwen3Config, WDRNgramQwen3ForCausalLM
from .backbones.reformer import WDRNgramReformerConfig, WDRNgramReformerModelWithLMHead
from .backbones.registry import register_named, register_on_demand
from .backbones.t5 import WDRNgramT5Config, WDRNgramT5ForConditionalGeneration
from .backbones.tensorized import WDRNgramTensorizedTransformerConfig, WDRNgramTensorizedTransformerLMHeadModel
from .backbones.tensorized_model import TensorizedTransformerConfig, TensorizedTransformerLMHeadModel
from .backbones.with_heads import with_ngram_heads
from .decoding.processor import NgramEnsembleLogitsProcessor
from .method.differences import conjugate, wdr
from .version import __version__

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
register_on_demand()

__all__ = [
    "NgramEnsembleLogitsProcessor",
    "TensorizedTransformerConfig",
    "TensorizedTransformerLMHeadModel",
    "WDRNgramBartConfig",
    "WDRNgramBartForConditionalGeneration",
    "WDRNgramBertConfig",
    "WDRNgramBertForMaskedLM",
    "WDRNgramConfig",
    "WDRNgramGPT2LMHeadModel",
    "WDRNgramGPTNeoXConfig",
    "WDRNgramGPTNeoXForCausalLM",
    "WDRNgramGemma2Config",
    "WDRNgramGemma2ForCausalLM",
    "WDRNgramGemma3ForCausalLM",
    "WDRNgramGemma3TextConfig",
    "WDRNgramGemmaConfig",
    "WDRNgramGemmaForCausalLM",
    "WDRNgramLlamaConfig",
    "WDRNgramLlamaForCausalLM",
    "WDRNgramMarianConfig",
    "WDRNgramMarianMTModel",
    "WDRNgramMistralConfig",
    "WDRNgramMistralForCausalLM",
    "WDRNgramModernBertConfig",
    "WDRNgramModernBertForMaskedLM",
    "WDRNgramOPTConfig",
    "WDRNgramOPTForCausalLM",
    "WDRNgramQwen3Config",
    "WDRNgramQwen3ForCausalLM",
    "WDRNgramReformerConfig",
    "WDRNgramReformerModelWithLMHead",
    "WDRNgramT5Config",
    "WDRNgramT5ForConditionalGeneration",
    "WDRNgramTensorizedTransformerConfig",
    "WDRNgramTensorizedTransformerLMHeadModel",
    "__version__",
    "conjugate",
    "fit_ensemble",
    "wdr",
    "with_ngram_heads",
]


def __getattr__(name: str):
    if name == "fit_ensemble":
        # Imported when it is used: it needs the `datasets` library, which takes a second to import.
        from .evaluation.fit import fit_ensemble

        return fit_ensemble
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
