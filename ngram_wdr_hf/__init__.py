"""N-gram and word-difference (WDR) prediction for Hugging Face language models."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .auto_classes import register_model_types
from .version import __version__

if TYPE_CHECKING:
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
    from .backbones.t5 import WDRNgramT5Config, WDRNgramT5ForConditionalGeneration
    from .backbones.tensorized import WDRNgramTensorizedTransformerConfig, WDRNgramTensorizedTransformerLMHeadModel
    from .backbones.tensorized_model import TensorizedTransformerConfig, TensorizedTransformerLMHeadModel
    from .backbones.with_heads import with_ngram_heads
    from .decoding.ensemble_processor import NgramEnsembleLogitsProcessor
    from .evaluation.ensemble_fit import fit_ensemble
    from .method.differences import conjugate, wdr
    from .training.sft import NgramSFTTrainer
    from .training.trainer import NgramTrainer

__all__ = [
    "NgramEnsembleLogitsProcessor",
    "NgramSFTTrainer",
    "NgramTrainer",
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

# Where the names are; the others are in `backbones`.
_MODULES = {
    "NgramEnsembleLogitsProcessor": ".decoding.ensemble_processor",
    "NgramSFTTrainer": ".training.sft",
    "NgramTrainer": ".training.trainer",
    "conjugate": ".method.differences",
    "fit_ensemble": ".evaluation.ensemble_fit",
    "wdr": ".method.differences",
}

register_model_types()


if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept every name.
    def __getattr__(name: str) -> Any:
        """Return a public name or a room, imported when it is used: torch and Transformers take seconds to import."""
        if name in __all__:
            return getattr(import_module(_MODULES.get(name, ".backbones"), __name__), name)
        if find_spec(f"{__name__}.{name}") is not None:
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
