"""
A program of a user. It is not run: the type checker reads it, and each `assert_type` says what an editor shows.
"""

from typing import Any, assert_type

import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel, Trainer
from transformers.generation import GenerateDecoderOnlyOutput

from ngram_wdr_hf import (
    NgramEnsembleLogitsProcessor,
    WDRNgramBertForMaskedLM,
    WDRNgramConfig,
    WDRNgramGPT2LMHeadModel,
    WDRNgramMarianConfig,
    WDRNgramMarianMTModel,
    __version__,
    conjugate,
    fit_ensemble,
    wdr,
    with_ngram_heads,
)
from ngram_wdr_hf.data.token_stream import EvaluationWindows
from ngram_wdr_hf.evaluation.ensemble_fit import EnsembleFit
from ngram_wdr_hf.modeling.causal import NgramMixin
from ngram_wdr_hf.modeling.masked import NgramMaskedMixin


def add_heads(plain: GPT2LMHeadModel, masked: BertForMaskedLM) -> None:
    model = with_ngram_heads(plain, ngram_size=4, ngram_target="wdr", ensemble_lambda=0.3)
    assert_type(model, NgramMixin)
    assert_type(model.config.ngram_size, int)
    assert_type(model.config.ensemble_lambda, float)
    assert_type(model.ngram_heads, torch.nn.ModuleList)
    assert_type(model.to("cuda").train(), NgramMixin)
    assert_type(with_ngram_heads(masked), NgramMaskedMixin)
    Trainer(model)


def load_a_checkpoint(windows: EvaluationWindows) -> None:
    model = with_ngram_heads("gpt2", dtype="bfloat16")
    assert_type(model, NgramMixin | Any)
    with_info, info = with_ngram_heads("gpt2", output_loading_info=True)
    assert_type(with_info, NgramMixin | Any)
    assert_type(info, dict[str, Any])
    # A program that uses a masked model says so.
    masked = with_ngram_heads("bert-base-uncased")
    assert isinstance(masked, NgramMaskedMixin)
    assert_type(masked.config.wdr_compose, str)
    fit = fit_ensemble(model, windows)
    assert_type(fit, EnsembleFit)
    model.config.ensemble_weights = fit.weights


def use_a_named_class(prompt: torch.Tensor) -> None:
    model = WDRNgramGPT2LMHeadModel.from_pretrained("gpt2", ngram_size=4)
    assert_type(model, WDRNgramGPT2LMHeadModel)
    assert_type(model.config, WDRNgramConfig)
    # Fields of the backbone and of the heads.
    assert_type(model.config.n_embd, int)
    assert_type(model.config.draft_vocab_size, int | None)
    again, info = WDRNgramGPT2LMHeadModel.from_pretrained("gpt2", output_loading_info=True)
    assert_type(again, WDRNgramGPT2LMHeadModel)
    assert_type(info, dict[str, Any])
    tokens = model.generate(prompt, use_mtp=True, ensemble_lambda=0.4, max_new_tokens=8)
    assert isinstance(tokens, torch.Tensor)
    assert_type(tokens, torch.LongTensor)
    output = model.generate(prompt, return_dict_in_generate=True)
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert_type(output.sequences, torch.LongTensor)
    model.ngram_set_draft_tokens(torch.arange(100))
    NgramEnsembleLogitsProcessor(model, 0.4)
    model.save_pretrained("folder")


def translate(source: torch.Tensor) -> None:
    model = WDRNgramMarianMTModel(WDRNgramMarianConfig(ngram_size=3, bow_loss_weight=0.1))
    assert_type(model.config.bow_loss_weight, float)
    assert_type(model.config.encoder_layers, int)
    model.generate(source, num_beams=4, ensemble_weights=[1.0, 0.1, 0.1])


def fill_masks() -> None:
    model = WDRNgramBertForMaskedLM.from_pretrained("bert-base-uncased")
    assert_type(model.config.wdr_compose, str)


def differences(embeddings: torch.Tensor) -> None:
    assert_type(wdr(embeddings, 2) + conjugate(embeddings, 2), torch.Tensor)
    print(__version__.split("."))
