"""Model setup shared by all tasks: configuration fields from options, and which weights are trained."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Conv1D, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...backbones.registry import is_masked
from ...data.errors import InputError
from ...evaluation.lengths import max_positions
from ...evaluation.models import as_input_error
from .arguments import GenerativeModelArguments, ModelArguments, RunArguments, parse_overrides
from .recipes import RECIPES

DEFAULT_NGRAM_SIZE = 4
# The share of the training text that a chosen list of draft tokens covers. The other tokens are rare, so a head would
# seldom draft them correctly.
COVERAGE = 0.98


# Options that are configuration fields of the same name.
FIELD_OPTIONS = (
    "ngram_size",
    "ngram_target",
    "label_smoothing",
    "ngram_head_reads",
    "ngram_head_expansion",
    "head_gradient",
    "head_loss_weight",
    "head_loss_decay",
    "head_sample_rate",
)


def config_fields(arguments: ModelArguments, do_train: bool, **fields: Any) -> dict[str, Any]:
    """
    Return the configuration fields that the recipe and the options set, plus `fields`. Options that are not given are
    left out. If the model is to be trained, it has no ensemble, because a checkpoint's does not suit the new weights.
    """
    given = {**{name: getattr(arguments, name) for name in FIELD_OPTIONS}, **fields}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.ngram_target == "none":
        given["ngram_size"] = 1
        del given["ngram_target"]
    recipe = RECIPES[arguments.recipe].fields if arguments.recipe is not None else {}
    no_ensemble = {"ensemble_lambda": 0.0, "ensemble_weights": None} if do_train else {}
    return {**recipe, **no_ensemble, **given}


def new_head_fields(arguments: ModelArguments, ngram_size: int, do_train: bool = True) -> dict[str, Any]:
    """
    Return the default configuration fields of new heads: N = `ngram_size`, and those of the recipe. If they are not to
    be trained, there are no new heads.
    """
    if not do_train:
        return {"ngram_size": 1}
    recipe = RECIPES[arguments.recipe or arguments.default_recipe]
    return {"ngram_size": ngram_size, **recipe.fields, **recipe.new_heads}


def new_model(model_class: type[PreTrainedModel], arguments: ModelArguments, **fields: Any) -> PreTrainedModel:
    """
    Return a model with random weights and these configuration fields. Raise an `InputError` for bad values, and for
    fields of `--config_overrides` that the configuration does not have.
    """
    config_class = model_class.config_class
    known = (*config_class.__dataclass_fields__, *config_class.attribute_map)
    for name in parse_overrides(arguments.config_overrides):
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            advice = f"Did you mean `{nearest[0]}`?" if nearest else "Remove it."
            raise InputError(f"`--config_overrides {name}` is no field of {config_class.__name__}. {advice}")
    with as_input_error():
        return model_class(config_class(**fields))


def limit_length(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Lower the tokenizer's `model_max_length`, in place, to the longest input of the model, if that has a limit."""
    longest = max_positions(model)
    if longest is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, longest)


def can_drop_drafts(model: PreTrainedModel) -> bool:
    """Return whether `generate(use_mtp=True)` can undo rejected drafts in the model's state."""
    return not model._is_stateful


def restrict_drafts(
    model: PreTrainedModel, arguments: GenerativeModelArguments, training_tokens: Iterable[np.ndarray]
) -> None:
    """
    Let the heads draft only the most frequent tokens of `training_tokens`, an iterable of id arrays: as many as
    `--draft_vocab_size` says or, if only the heads are trained, as cover `COVERAGE` of them. Without training tokens,
    keep the model's draft tokens, cut or filled up to `--draft_vocab_size` with the first ids of the vocabulary.
    """
    size, vocab_size = arguments.draft_vocab_size, model.ngram_vocab_size
    has_list = arguments.train_mode == "heads" or size is not None or model.config.draft_vocab_size is not None
    if arguments.head_loss_tokens == "draft" and not has_list:
        raise InputError("`--head_loss_tokens draft` needs a list of draft tokens: set `--draft_vocab_size`.")
    if not model.ngram_heads or (size is None and arguments.train_mode != "heads"):
        return
    if size is not None and size > vocab_size:
        raise InputError(f"`--draft_vocab_size` must be at most {vocab_size}, the vocabulary size, got {size}.")
    counts = np.zeros(vocab_size, dtype=np.int64)
    for piece in training_tokens:
        counts += np.bincount(piece, minlength=vocab_size)
    if counts.any():
        order = np.argsort(-counts, kind="stable")
        if size is None:
            covered = counts[order].cumsum() / counts.sum()
            size = 1 + int(np.searchsorted(covered, COVERAGE))
        model.ngram_set_draft_tokens(torch.from_numpy(order[:size]))
    elif size is not None:
        model.config.draft_vocab_size = size
        model._ngram_match_draft_tokens()


def check_train_mode(model: PreTrainedModel, arguments: RunArguments) -> None:
    """
    Raise an `InputError` if the model cannot be trained with `--train_mode`: `heads` needs heads, `lora` the package
    peft. Without training, nothing is checked.
    """
    mode = arguments.model.train_mode if arguments.training.do_train else None
    if mode == "heads" and not model.ngram_heads:
        raise InputError("`--train_mode heads` needs a model with heads: set `--ngram_size` to at least 2.")
    if mode == "lora" and find_spec("peft") is None:
        raise InputError("`--train_mode lora` needs the package peft: run `pip install peft`.")


def choose_weights(model: PreTrainedModel, arguments: ModelArguments) -> nn.Module:
    """
    Freeze the weights that `--train_mode` does not train, in place. Return the model to train: `model` itself, or for
    LoRA a PEFT model around it.
    """
    if arguments.train_mode == "full":
        return model
    if arguments.train_mode == "heads":
        model.requires_grad_(False)
        model.ngram_heads.requires_grad_(True)
        return model
    from peft import LoraConfig, get_peft_model

    excluded = (model.get_output_embeddings(), *model.ngram_heads.modules())
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D)) and not any(layer is module for module in excluded)
    }
    adapters = LoraConfig(
        r=arguments.lora_rank,
        lora_alpha=2 * arguments.lora_rank,
        target_modules=sorted({name.split(".")[-1] for name in layers}),
        # One entry per head: PEFT cannot wrap a `ModuleList`.
        modules_to_save=[f"ngram_heads.{n}" for n in range(len(model.ngram_heads))],
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        task_type=_peft_task(model.config),
    )
    return get_peft_model(model, adapters)


def _peft_task(config: PreTrainedConfig) -> str | None:
    """Return PEFT's task type of a causal or encoder-decoder model; `None` for masked language models."""
    if is_masked(config):
        return None
    return "SEQ_2_SEQ_LM" if config.is_encoder_decoder else "CAUSAL_LM"
