"""N-gram and word-difference (WDR) prediction for Hugging Face language models."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .backbones import register_model_types
from .version import __version__

if TYPE_CHECKING:
    from .backbones.bart import WDRNgramBartConfig, WDRNgramBartForConditionalGeneration
    from .backbones.bert import WDRNgramBertConfig, WDRNgramBertForMaskedLM
    from .backbones.gpt2 import WDRNgramConfig, WDRNgramGPT2LMHeadModel
    from .backbones.marian import WDRNgramMarianConfig, WDRNgramMarianMTModel
    from .backbones.modernbert import WDRNgramModernBertConfig, WDRNgramModernBertForMaskedLM
    from .backbones.reformer import WDRNgramReformerConfig, WDRNgramReformerModelWithLMHead
    from .backbones.t5 import WDRNgramT5Config, WDRNgramT5ForConditionalGeneration
    from .backbones.tensorized import (
        TensorizedTransformerConfig,
        TensorizedTransformerLMHeadModel,
        WDRNgramTensorizedTransformerConfig,
        WDRNgramTensorizedTransformerLMHeadModel,
    )
    from .backbones.with_heads import with_ngram_heads
    from .decoding.ensemble_processor import NgramEnsembleLogitsProcessor
    from .evaluation.ensemble_fit import fit_ensemble
    from .method.differences import conjugate, wdr
    from .training.sft import NgramSFTTrainer
    from .training.trainer import NgramTrainer

# Where the names are. `WDRNgram` before the name of any other language model class of Transformers is made on demand.
_NAMES = {
    "backbones.bart": ("WDRNgramBartConfig", "WDRNgramBartForConditionalGeneration"),
    "backbones.bert": ("WDRNgramBertConfig", "WDRNgramBertForMaskedLM"),
    "backbones.gpt2": ("WDRNgramConfig", "WDRNgramGPT2LMHeadModel"),
    "backbones.marian": ("WDRNgramMarianConfig", "WDRNgramMarianMTModel"),
    "backbones.modernbert": ("WDRNgramModernBertConfig", "WDRNgramModernBertForMaskedLM"),
    "backbones.reformer": ("WDRNgramReformerConfig", "WDRNgramReformerModelWithLMHead"),
    "backbones.t5": ("WDRNgramT5Config", "WDRNgramT5ForConditionalGeneration"),
    "backbones.tensorized": (
        *("TensorizedTransformerConfig", "TensorizedTransformerLMHeadModel"),
        *("WDRNgramTensorizedTransformerConfig", "WDRNgramTensorizedTransformerLMHeadModel"),
    ),
    "backbones.with_heads": ("with_ngram_heads",),
    "decoding.ensemble_processor": ("NgramEnsembleLogitsProcessor",),
    "evaluation.ensemble_fit": ("fit_ensemble",),
    "method.differences": ("conjugate", "wdr"),
    "training.sft": ("NgramSFTTrainer",),
    "training.trainer": ("NgramTrainer",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["__version__", *sorted(_MODULES)]

register_model_types()


if not TYPE_CHECKING:
    # Hidden from type checkers, which would accept every name.
    def __getattr__(name: str) -> Any:
        """Return a public name or a room, imported when it is used: the model classes take seconds to import."""
        if name in _MODULES or name.startswith("WDRNgram"):
            return getattr(import_module(f".{_MODULES.get(name, 'backbones')}", __name__), name)
        if find_spec(f"{__name__}.{name}") is not None:
            return import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
