"""From options to a model: a new one by preset, or a checkpoint with heads; which weights are trained, and saved."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .. import backbones
from ..backbones.tensorized import WDRNgramTensorizedTransformerLMHeadModel
from ..data.errors import InputError
from ..data.tokenizers import end_token_id, start_token_id
from ..evaluation.models import load_checkpoint, load_config, max_positions
from ..method.configuration import NgramConfigMixin
from .options import EnsembleOptions, ModelOptions
from .presets import RECIPES, read_fields

# The share of the training text that a chosen list of draft tokens covers. A head seldom drafts rare tokens correctly.
COVERAGE = 0.98
# Options that are configuration fields of the same name.
FIELD_OPTIONS = (
    "ngram_size", "ngram_target", "ngram_head_reads", "head_sample_rate", "label_smoothing", "bow_loss_weight",
    "wdr_compose",
)  # fmt: skip
BACKBONES = {
    "gpt2": backbones.WDRNgramGPT2LMHeadModel,
    "tensorized": WDRNgramTensorizedTransformerLMHeadModel,
    "reformer": backbones.WDRNgramReformerModelWithLMHead,
    "marian": backbones.WDRNgramMarianMTModel,
    "bert": backbones.WDRNgramBertForMaskedLM,
    "modernbert": backbones.WDRNgramModernBertForMaskedLM,
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
    none. What `--train_mode` does not train is frozen. The tokenizer's maximum length becomes that of the model.
    """
    fields = {} if options.recipe is None else dict(RECIPES[options.recipe].fields)
    if do_train:
        # The ensemble of a checkpoint would not suit the new weights.
        fields |= {"ensemble_lambda": 0.0, "ensemble_weights": None}
    given = {name: getattr(options, name, None) for name in FIELD_OPTIONS}
    if options.ngram_target == "none":
        given |= {"ngram_size": 1, "ngram_target": None}
    fields |= {name: value for name, value in given.items() if value is not None} | options.overrides
    recipe = RECIPES[options.recipe or options.default_recipe]
    new_heads = {"ngram_size": options.default_ngram_size, **recipe.fields, **recipe.new_heads}
    name, preset = options.model_name_or_path, options.presets.get(options.preset)
    config_class = type(load_config(name, kind)) if name is not None else BACKBONES[preset.backbone].config_class
    known = {*config_class.__dataclass_fields__, *config_class.attribute_map, *NgramConfigMixin.__dataclass_fields__}
    # A configuration would ignore them.
    if unknown := options.overrides.keys() - known:
        raise InputError(f"`--config_overrides {min(unknown)}` is no field of {config_class.__name__}: correct it.")
    if name is not None:
        model = load_checkpoint(name, kind, tokenizer, new_heads if do_train else {"ngram_size": 1}, **fields)
    else:
        fields = new_heads | read_fields(preset.config.split()) | fields
        fields |= _token_fields(kind, tokenizer) | _length_fields(preset.backbone, block_size, fields, config_class())
        model = BACKBONES[preset.backbone](config_class(vocab_size=len(tokenizer), **fields))
        if kind == "causal":
            # In `generation_config` only: in a forward pass, the end token is not padding.
            model.generation_config.pad_token_id = end_token_id(tokenizer)
    if model.config.head_loss_tokens == "draft" and kind != "masked":
        model.config.draft_by_default = True
    if options.train_mode == "heads":
        model.requires_grad_(False)
        model.ngram_heads.requires_grad_(True)
    tokenizer.model_max_length = min(tokenizer.model_max_length, max_positions(model) or tokenizer.model_max_length)
    return model


def _token_fields(kind: str, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the configuration fields of a new model for special tokens."""
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    if kind == "causal":
        return {"bos_token_id": start_token_id(tokenizer), "eos_token_id": end}
    fields = {"eos_token_id": end, "pad_token_id": padding}
    if kind == "seq2seq":
        return fields | {"forced_eos_token_id": end, "decoder_start_token_id": padding}
    return fields | {name: getattr(tokenizer, name) for name in ("bos_token_id", "cls_token_id", "sep_token_id")}


def _length_fields(
    backbone: str, block_size: int | None, fields: dict[str, Any], defaults: PreTrainedConfig
) -> dict[str, Any]:
    """Return the fields that set the longest input to `block_size`; for a Reformer, to a multiple of its chunks."""
    if block_size is None or backbone != "reformer":
        return {} if block_size is None else {"max_position_embeddings": block_size}
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
    Let the heads draft only the `--draft_vocab_size` most frequent of `training_tokens`; by default, if only the heads
    are trained, as many as cover `COVERAGE`. Without such tokens, cut the model's own list, or fill it up.
    """
    size, vocab_size = ensemble.draft_vocab_size, model.ngram_vocab_size
    if model.config.ngram_size == 1 or (size is None and options.train_mode != "heads"):
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
