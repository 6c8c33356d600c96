"""N-gram and word-difference (WDR) prediction for Hugging Face language models."""

from transformers import AutoConfig, AutoModelForCausalLM

from .arithmetic import conjugate, wdr
from .ensemble_wdr_ngram import NgramEnsembleLogitsProcessor
from .gpt2_wdr_ngram import WDRNgramConfig, WDRNgramGPT2LMHeadModel

AutoConfig.register(WDRNgramConfig.model_type, WDRNgramConfig, exist_ok=True)
AutoModelForCausalLM.register(WDRNgramConfig, WDRNgramGPT2LMHeadModel, exist_ok=True)
# A saved checkpoint carries the code it needs, for `trust_remote_code=True`.
WDRNgramConfig.register_for_auto_class("AutoConfig")
WDRNgramGPT2LMHeadModel.register_for_auto_class("AutoModelForCausalLM")

__all__ = [
    "NgramEnsembleLogitsProcessor",
    "WDRNgramConfig",
    "WDRNgramGPT2LMHeadModel",
    "conjugate",
    "wdr",
]
