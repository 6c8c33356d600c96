"""N-gram and word-difference (WDR) prediction for Hugging Face language models."""

from .arithmetic import conjugate, wdr
from .backbones import register_named, register_on_demand, with_ngram_heads
from .bart_wdr_ngram import WDRNgramBartConfig, WDRNgramBartForConditionalGeneration
from .bert_wdr_ngram import WDRNgramBertConfig, WDRNgramBertForMaskedLM
from .ensemble_wdr_ngram import NgramEnsembleLogitsProcessor
from .gemma_wdr_ngram import (
    WDRNgramGemma2Config,
    WDRNgramGemma2ForCausalLM,
    WDRNgramGemma3ForCausalLM,
    WDRNgramGemma3TextConfig,
    WDRNgramGemmaConfig,
    WDRNgramGemmaForCausalLM,
)
from .gpt2_wdr_ngram import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from .gpt_neox_wdr_ngram import WDRNgramGPTNeoXConfig, WDRNgramGPTNeoXForCausalLM
from .llama_wdr_ngram import WDRNgramLlamaConfig, WDRNgramLlamaForCausalLM
from .marian_wdr_ngram import WDRNgramMarianConfig, WDRNgramMarianMTModel
from .mistral_wdr_ngram import WDRNgramMistralConfig, WDRNgramMistralForCausalLM
from .modernbert_wdr_ngram import WDRNgramModernBertConfig, WDRNgramModernBertForMaskedLM
from .opt_wdr_ngram import WDRNgramOPTConfig, WDRNgramOPTForCausalLM
from .qwen3_wdr_ngram import WDRNgramQwen3Config, WDRNgramQwen3ForCausalLM
from .reformer_wdr_ngram import WDRNgramReformerConfig, WDRNgramReformerModelWithLMHead
from .t5_wdr_ngram import WDRNgramT5Config, WDRNgramT5ForConditionalGeneration
from .tensorized_model_wdr_ngram import TensorizedTransformerConfig, TensorizedTransformerLMHeadModel
from .tensorized_wdr_ngram import WDRNgramTensorizedTransformerConfig, WDRNgramTensorizedTransformerLMHeadModel

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
    "conjugate",
    "wdr",
    "with_ngram_heads",
]
