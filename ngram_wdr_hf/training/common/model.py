"""What the models of all tasks share: the fields that the options set, and which weights are trained."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Conv1D, PreTrainedConfig, PreTrainedModel

from ...backbones.registry import is_masked
from ...data.errors import InputError
from ...evaluation.checkpoint import as_input_error
from .arguments import ModelArguments, RunArguments

DEFAULT_NGRAM_SIZE = 4


def asked_fields(arguments: ModelArguments, do_train: bool, **fields: Any) -> dict[str, Any]:
    """The configuration fields that the options set, and `fields`, except those that are `None`."""
    asked = {"ngram_size": arguments.ngram_size, "ngram_target": arguments.ngram_target}
    if arguments.ngram_target == "none":
        asked = {"ngram_size": 1}
    if do_train:
        # The trained weights get a λ of their own.
        asked["ensemble_lambda"] = 0.0
    fields = {**asked, "label_smoothing": arguments.label_smoothing, **fields}
    return {name: value for name, value in fields.items() if value is not None}


def new_model(model_class: type[PreTrainedModel], **fields: Any) -> PreTrainedModel:
    """A model with fresh weights and these configuration fields."""
    with as_input_error():
        return model_class(model_class.config_class(**fields))


def positions(model: PreTrainedModel) -> int | None:
    """How many tokens the model can see; `None` if there is no end."""
    try:
        return getattr(model.config, "max_position_embeddings", None)
    except NotImplementedError:  # Transformers' way to say so in some configurations
        return None


def restrict_drafts(model: PreTrainedModel, size: int | None, training_tokens: Iterable[np.ndarray]) -> None:
    """
    Let the heads draft only the `size` most frequent of `training_tokens` (pieces of a text). Without any, those that
    the model has kept, or the first of the vocabulary.
    """
    if size is None or not model.ngram_heads:
        return
    vocab_size = model.ngram_vocab_size
    if size > vocab_size:
        raise InputError(
            f"`--draft_vocab_size` is {size}, but there are {vocab_size} tokens: choose no more than that."
        )
    counts = np.zeros(vocab_size, dtype=np.int64)
    for piece in training_tokens:
        counts += np.bincount(piece, minlength=vocab_size)
    if counts.any():
        model.ngram_set_draft_tokens(torch.from_numpy(np.argsort(-counts, kind="stable")[:size]))
    else:
        model.config.draft_vocab_size = size
        model._ngram_match_draft_tokens()


def check_train_mode(model: PreTrainedModel, arguments: RunArguments) -> None:
    """Check that the model can be trained as `--train_mode` says."""
    mode = arguments.model.train_mode if arguments.training.do_train else None
    if mode == "heads" and not model.ngram_heads:
        raise InputError("`--train_mode heads` needs heads: set `--ngram_size` to at least 2.")
    if mode == "lora" and find_spec("peft") is None:
        raise InputError("`--train_mode lora` needs the package peft: install it with `pip install peft`.")


def choose_weights(model: PreTrainedModel, arguments: ModelArguments) -> nn.Module:
    """Freeze what is not trained; for LoRA, wrap the model."""
    if arguments.train_mode == "full":
        return model
    if arguments.train_mode == "heads":
        model.requires_grad_(False)
        model.ngram_heads.requires_grad_(True)
        return model
    from peft import LoraConfig, get_peft_model

    is_left = (model.get_output_embeddings(), *model.ngram_heads.modules())
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, (nn.Linear, Conv1D)) and not any(layer is other for other in is_left)
    }
    adapters = LoraConfig(
        r=arguments.lora_rank,
        lora_alpha=2 * arguments.lora_rank,
        target_modules=sorted({name.split(".")[-1] for name in layers}),
        # One by one: PEFT cannot wrap the list of heads itself.
        modules_to_save=[f"ngram_heads.{n}" for n in range(len(model.ngram_heads))],
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        task_type=_peft_task(model.config),
    )
    return get_peft_model(model, adapters)


def _peft_task(config: PreTrainedConfig) -> str | None:
    """PEFT's name for what the model does; it has none for masked language models."""
    if is_masked(config):
        return None
    return "SEQ_2_SEQ_LM" if config.is_encoder_decoder else "CAUSAL_LM"
