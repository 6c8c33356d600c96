"""N-gram and word-difference (WDR) prediction for Hugging Face language models."""

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from .arithmetic import conjugate, wdr
from .bart_wdr_ngram import WDRNgramBartConfig, WDRNgramBartForConditionalGeneration
from .ensemble_wdr_ngram import NgramEnsembleLogitsProcessor
from .gpt2_wdr_ngram import WDRNgramConfig, WDRNgramGPT2LMHeadModel
from .marian_wdr_ngram import WDRNgramMarianConfig, WDRNgramMarianMTModel
from .t5_wdr_ngram import WDRNgramT5Config, WDRNgramT5ForConditionalGeneration

_MODELS = {
    AutoModelForCausalLM: (WDRNgramGPT2LMHeadModel,),
    AutoModelForSeq2SeqLM: (
        WDRNgramBartForConditionalGeneration,
        WDRNgramMarianMTModel,
        WDRNgramT5ForConditionalGeneration,
    ),
}
for _auto_class, _models in _MODELS.items():
    for _model in _models:
        _config = _model.config_class
        AutoConfig.register(_config.model_type, _config, exist_ok=True)
        _auto_class.register(_config, _model, exist_ok=True)
        # A saved checkpoint carries the code it needs, for `trust_remote_code=True`.
        _config.register_for_auto_class("AutoConfig")
        _model.register_for_auto_class(_auto_class.__name__)

__all__ = [
    "NgramEnsembleLogitsProcessor",
    "WDRNgramBartConfig",
    "WDRNgramBartForConditionalGeneration",
    "WDRNgramConfig",
    "WDRNgramGPT2LMHeadModel",
    "WDRNgramMarianConfig",
    "WDRNgramMarianMTModel",
    "WDRNgramT5Config",
    "WDRNgramT5ForConditionalGeneration",
    "conjugate",
    "wdr",
]
