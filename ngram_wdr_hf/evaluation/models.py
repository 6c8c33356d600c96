"""Checkpoints with or without N-gram heads: loading them for training and evaluation, and generating with them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.utils import ModelOutput

from ..backbones.registry import auto_class_of, is_masked
from ..backbones.with_heads import with_ngram_heads
from ..data.errors import InputError
from ..decoding import draft_limits
from ..method.configuration import NgramConfigMixin
from ..modeling.base import NgramHeadsMixin
from ..modeling.generation import ENSEMBLE_ARGUMENTS
from .scores import evaluating

# Tokens per block if the user gives none and the model has no limit, or a higher one in training.
DEFAULT_BLOCK_SIZE = 1024


def max_positions(model: PreTrainedModel) -> int | None:
    """Return the longest input of the model in tokens; `None` if there is no limit."""
    return draft_limits.max_positions(model.config)


def load_config(name_or_path: str, kind: str) -> PreTrainedConfig:
    """Load the configuration of a checkpoint. `kind` is "causal", "masked" or "seq2seq"."""
    config = AutoConfig.from_pretrained(name_or_path)
    found = "masked" if is_masked(config) else "seq2seq" if config.is_encoder_decoder else "causal"
    if found != kind:
        raise InputError(f"{name_or_path} has the wrong kind of model, {found}: choose one that is {kind}.")
    return config


def load_checkpoint(
    name_or_path: str,
    kind: str,
    tokenizer: PreTrainedTokenizerBase,
    new_heads: Mapping[str, Any] | None = None,
    **fields: Any,
) -> NgramHeadsMixin:
    """Load a checkpoint with heads, or a plain one with `new_heads`; `fields` replace those of its configuration."""
    config = load_config(name_or_path, kind)
    if isinstance(config, NgramConfigMixin):
        load = auto_class_of(config.is_encoder_decoder, is_masked(config)).from_pretrained
    else:
        load, fields = with_ngram_heads, {**(new_heads or {"ngram_size": 1}), **fields}
    model, info = load(name_or_path, **fields, output_loading_info=True)
    parameters = {name for name, _ in model.named_parameters() if not name.startswith("ngram_heads.")}
    missing = sorted(parameters & info["missing_keys"])
    if missing:
        raise InputError(f"{name_or_path} lacks {len(missing)} weights, as `{missing[0]}`: use a complete checkpoint.")
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(
            f"The tokenizer has {len(tokenizer)} tokens, but {name_or_path} only {model.config.vocab_size} "
            "embeddings: use the tokenizer that the model was trained with."
        )
    if model.can_generate() and not fields.keys().isdisjoint(ENSEMBLE_ARGUMENTS):
        # Those saved in `generation_config` would take precedence.
        for name in ENSEMBLE_ARGUMENTS:
            vars(model.generation_config).pop(name, None)
    # Transformers loads Marian's sinusoidal positions as trainable, but they never get a gradient.
    for layer in model.modules():
        if isinstance(layer, MarianSinusoidalPositionalEmbedding):
            layer.requires_grad_(False)
    return model


def generate_after(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, use_mtp: bool, **options: Any
) -> ModelOutput:
    """Return the output of `generate`, in evaluation mode, for prompts of equal length, within the positions."""
    ids = torch.as_tensor(prompts, device=model.device)
    num_read = 1 if model.config.is_encoder_decoder else ids.shape[1]
    with evaluating(model):
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            # Avoids Transformers' warning about two limits.
            max_length=None,
            max_new_tokens=min(max_new_tokens, (max_positions(model) or math.inf) - num_read),
            use_mtp=use_mtp,
            return_dict_in_generate=True,
            **options,
        )
