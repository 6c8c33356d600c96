"""From options to a model: a new one by preset, or a checkpoint with heads; which weights are trained, and saved."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .. import (
    WDRNgramBertForMaskedLM,
    WDRNgramGPT2LMHeadModel,
    WDRNgramMarianMTModel,
    WDRNgramModernBertForMaskedLM,
    WDRNgramReformerModelWithLMHead,
    WDRNgramTensorizedTransformerLMHeadModel,
)
from ..data.errors import InputError
from ..data.tokenizers import end_token_id, start_token_id
from ..evaluation.models import load_checkpoint, load_config, max_positions
from ..method.configuration import NgramConfigMixin
from .options import EnsembleOptions, ModelOptions
from .presets import RECIPES, Preset, read_fields

# The share of the training text that a chosen list of draft tokens covers. The other tokens are rare, so a head would
# seldom draft them correctly.
COVERAGE = 0.98
# Options that are configuration fields of the same name.
FIELD_OPTIONS = (
    "ngram_size", "ngram_target", "ngram_head_reads", "head_sample_rate", "label_smoothing", "bow_loss_weight",
    "wdr_compose",
)  # fmt: skip
BACKBONES = {
    "gpt2": WDRNgramGPT2LMHeadModel,
    "tensorized": WDRNgramTensorizedTransformerLMHeadModel,
    "reformer": WDRNgramReformerModelWithLMHead,
    "marian": WDRNgramMarianMTModel,
    "bert": WDRNgramBertForMaskedLM,
    "modernbert": WDRNgramModernBertForMaskedLM,
}


def make_model(
    options: ModelOptions,
    kind: str,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int | None = None,
    do_train: bool = True,
) -> PreTrainedModel:
    """
    Return the checkpoint of `--model_name_or_path` with heads, of a kind (`"causal"`, `"seq2seq"` or `"masked"`), or a
    new model by preset, for up to `block_size` tokens. A plain checkpoint gets new heads if it is to be trained, else
    none. A model to be trained has no ensemble, as that of a checkpoint does not suit the new weights. It drafts by
    default if its heads are for drafts alone. What `--train_mode` does not train is frozen. The tokenizer's maximum
    length becomes that of the model, in place.
    """
    fields = {} if options.recipe is None else dict(RECIPES[options.recipe].fields)
    if do_train:
        fields |= {"ensemble_lambda": 0.0, "ensemble_weights": None}
    given = {name: getattr(options, name, None) for name in FIELD_OPTIONS}
    if options.ngram_target == "none":
        given |= {"ngram_size": 1, "ngram_target": None}
    fields |= {name: value for name, value in given.items() if value is not None} | options.overrides
    recipe = RECIPES[options.recipe or options.default_recipe]
    new_heads = {"ngram_size": options.default_ngram_size, **recipe.fields, **recipe.new_heads}
    if options.model_name_or_path is not None:
        _check_overrides(options.overrides, type(load_config(options.model_name_or_path, kind)))
        new_heads = new_heads if do_train else {"ngram_size": 1}
        model = load_checkpoint(options.model_name_or_path, kind, tokenizer, new_heads, **fields)
    else:
        preset = options.presets[options.preset]
        model_class = BACKBONES[preset.backbone]
        config_class = model_class.config_class
        _check_overrides(options.overrides, config_class)
        fields = {**new_heads, **read_fields(preset.config.split()), **fields}
        fields |= _token_fields(preset, tokenizer) | _length_fields(preset, block_size, fields, config_class)
        model = model_class(config_class(vocab_size=len(tokenizer), **fields))
        if kind == "causal":
            # In `generation_config` only: in a forward pass, the end token is not padding.
            model.generation_config.pad_token_id = end_token_id(tokenizer)
    if model.config.head_loss_tokens == "draft" and kind != "masked":
        model.generation_config.use_mtp = True
    if options.train_mode == "heads":
        model.requires_grad_(False)
        model.ngram_heads.requires_grad_(True)
    tokenizer.model_max_length = min(tokenizer.model_max_length, max_positions(model) or tokenizer.model_max_length)
    return model


def _check_overrides(overrides: dict[str, Any], config_class: type[PreTrainedConfig]) -> None:
    """Raise an `InputError` for a field of `--config_overrides` that a configuration would ignore."""
    known = {*config_class.__dataclass_fields__, *config_class.attribute_map, *NgramConfigMixin.__dataclass_fields__}
    for name in overrides:
        if name not in known:
            raise InputError(f"`--config_overrides {name}` is no field of {config_class.__name__}: correct the name.")


def _token_fields(preset: Preset, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the configuration fields of a new model for special tokens."""
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    if preset.backbone == "marian":
        ends = {"eos_token_id": end, "forced_eos_token_id": end}
        return {"pad_token_id": padding, "decoder_start_token_id": padding, **ends}
    if preset.backbone in ("bert", "modernbert"):
        names = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        return {name: getattr(tokenizer, name) for name in names}
    return {"bos_token_id": start_token_id(tokenizer), "eos_token_id": end}


def _length_fields(
    preset: Preset, block_size: int | None, fields: dict[str, Any], config_class: type[PreTrainedConfig]
) -> dict[str, Any]:
    """Return the fields that set the longest input to `block_size`; for a Reformer, to a multiple of its chunks."""
    if block_size is None or preset.backbone != "reformer":
        return {} if block_size is None else {"max_position_embeddings": block_size}
    defaults = config_class()
    names = ("local_attn_chunk_length", "lsh_attn_chunk_length")
    chunk = math.lcm(*(fields.get(name, getattr(defaults, name)) for name in names))
    # A Reformer trains on inputs of exactly rows * columns tokens, a multiple of the chunk length.
    length = -(-block_size // chunk) * chunk
    rows = max(divisor for divisor in range(1, math.isqrt(length) + 1) if length % divisor == 0)
    return {"max_position_embeddings": length, "axial_pos_shape": [rows, length // rows]}


def restrict_drafts(
    model: PreTrainedModel, options: ModelOptions, ensemble: EnsembleOptions, training_tokens: Iterable[np.ndarray]
) -> None:
    """
    Let the heads draft only the most frequent tokens of `training_tokens`, an iterable of id arrays: as many as
    `--draft_vocab_size` says or, if only the heads are trained, as cover `COVERAGE` of them. Without training tokens,
    keep the model's draft tokens, cut or filled up to `--draft_vocab_size` with the first ids of the vocabulary.
    """
    size, vocab_size = ensemble.draft_vocab_size, model.ngram_vocab_size
    if not model.ngram_heads or (size is None and options.train_mode != "heads"):
        return
    if size is not None and size > vocab_size:
        raise InputError(f"`--draft_vocab_size` must be at most {vocab_size}, the vocabulary size, got {size}.")
    counts = np.zeros(vocab_size, dtype=np.int64)
    for piece in training_tokens:
        counts += np.bincount(piece, minlength=vocab_size)
    if counts.any():
        order = np.argsort(-counts, kind="stable")
        if size is None:
            size = 1 + int(np.searchsorted(counts[order].cumsum() / counts.sum(), COVERAGE))
        model.ngram_set_draft_tokens(torch.from_numpy(order[:size]))
    elif size is not None:
        model.config.draft_vocab_size = size
        model._ngram_match_draft_tokens()
