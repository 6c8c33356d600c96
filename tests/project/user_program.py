"""
A program of a user. It is not run: the type checker reads it, and each `assert_type` says what an editor shows.
"""

from typing import Any, assert_type

import torch
from transformers import GPT2LMHeadModel, TrainingArguments

from ngram_wdr_hf import (
    NgramEnsembleLogitsProcessor,
    NgramTrainer,
    WDRNgramBertForMaskedLM,
    WDRNgramConfig,
    WDRNgramGPT2LMHeadModel,
    WDRNgramMarianConfig,
    WDRNgramMarianMTModel,
    conjugate,
    fit_ensemble,
    wdr,
    with_ngram_heads,
)
from ngram_wdr_hf.data.token_stream import EvaluationWindows
from ngram_wdr_hf.evaluation.ensemble_fit import EnsembleFit
from ngram_wdr_hf.method.heads import NgramHeads
from ngram_wdr_hf.modeling.causal import NgramMixin


def add_heads(plain: GPT2LMHeadModel, windows: EvaluationWindows) -> None:
    model = with_ngram_heads(plain, ngram_size=4, ngram_target="wdr", ensemble_lambda=0.3)
    # Of the tuple with `output_loading_info=True`, too.
    assert_type(model, NgramMixin | Any)
    assert_type(fit_ensemble(model, windows), EnsembleFit)
    NgramTrainer(model, TrainingArguments("run"), ensembles=[0.0, 0.4])


def use_named_classes(prompt: torch.Tensor, embeddings: torch.Tensor) -> None:
    model = WDRNgramGPT2LMHeadModel.from_pretrained("gpt2", ngram_size=4)
    assert_type(model, WDRNgramGPT2LMHeadModel)
    assert_type(model.config, WDRNgramConfig)
    # Fields of the backbone and of the heads.
    assert_type(model.config.n_embd, int)
    assert_type(model.ngram_heads, NgramHeads)
    assert_type(model.config.draft_vocab_size, int | None)
    model.generate(prompt, use_mtp=True, ensemble_lambda=0.4, max_new_tokens=8)
    NgramEnsembleLogitsProcessor(model, 0.4)
    translator = WDRNgramMarianMTModel(WDRNgramMarianConfig(ngram_size=3, bow_loss_weight=0.1))
    assert_type(translator.config.bow_loss_weight, float)
    assert_type(translator.config.encoder_layers, int)
    translator.generate(prompt, num_beams=4, ensemble_weights=[1.0, 0.1, 0.1])
    assert_type(WDRNgramBertForMaskedLM.from_pretrained("bert-base-uncased").config.wdr_compose, str)
    assert_type(wdr(embeddings, 2) + conjugate(embeddings, 2), torch.Tensor)
