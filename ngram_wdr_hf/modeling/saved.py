"""A checkpoint before its weights are loaded: whether it is there, and what its configuration says about them."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedConfig

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "token", "revision", "subfolder")
# `name` or `organization/name`; anything else is a path.
HUB_NAME = re.compile(r"(\b[\w.-]+\b/)?\b[\w.-]+\b", re.ASCII)
OTHER_HEADS = "load it without `{name}`, or add new heads to its trunk, loaded with the stock Transformers class"
# The fields that decide what saved weights mean, and what to do instead of changing them. The other fields weigh
# losses and predictions (`ensemble_lambda`, `label_smoothing`, `bow_loss_weight`) or select the targets of the heads
# (`wdr_compose`): they may change between two trainings.
FIELDS_OF_WEIGHTS = {
    "ngram_size": OTHER_HEADS,
    "ngram_target": OTHER_HEADS,
    "ngram_head_activation": OTHER_HEADS,
    "ngram_head_expansion": OTHER_HEADS,
    "ngram_head_reads": OTHER_HEADS,
    "draft_vocab_size": "pass `{name}` to `generate`, or call `ngram_set_draft_tokens` after loading",
}


@contextmanager
def naming_missing(name_or_path: str | os.PathLike | None) -> Iterator[None]:
    """Raise an `OSError` of one sentence for a folder that does not exist, or a name that the Hub does not give."""
    if name_or_path is None or os.path.exists(name_or_path):
        yield
        return
    if not HUB_NAME.fullmatch(os.fspath(name_or_path)):
        raise OSError(f"`{name_or_path}` is not there: give an existing folder, or a name on the Hub.")
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())
        raise OSError(f"`{name_or_path}` is no folder here, and the Hub does not give it either: {reason}") from error


def saved_config(
    config_class: type[PreTrainedConfig], name_or_path: str | os.PathLike | None, arguments: Mapping[str, Any]
) -> PreTrainedConfig | None:
    """
    Return the configuration of a checkpoint with heads of this class; `None` for any other checkpoint. `arguments` are
    those of `from_pretrained`.
    """
    if name_or_path is None:
        return None
    try:
        fields, _ = PreTrainedConfig.get_config_dict(name_or_path, **_hub_arguments(arguments))
    except (OSError, TypeError):  # weights without a configuration: the caller has passed one
        return None
    # A plain class that saves the trunk keeps the N-gram fields in its configuration, but has no heads.
    return config_class.from_dict(fields) if fields.get("model_type") == config_class.model_type else None


def check_fields_of_weights(
    config_class: type[PreTrainedConfig], name_or_path: str | os.PathLike | None, arguments: Mapping[str, Any]
) -> None:
    """
    Check that the arguments of `from_pretrained`, fields or a `config`, do not change what the weights of a checkpoint
    with heads mean.
    """
    config = arguments.get("config")
    if isinstance(config, PreTrainedConfig):
        requested = config.to_dict()
    elif config is None:
        requested = arguments
    else:
        requested = {**PreTrainedConfig.get_config_dict(config, **_hub_arguments(arguments))[0], **arguments}
    if FIELDS_OF_WEIGHTS.keys() & requested.keys():
        compare_fields_of_weights(saved_config(config_class, name_or_path, arguments), requested, name_or_path)


def compare_fields_of_weights(
    saved: PreTrainedConfig | None, requested: Mapping[str, Any], name_or_path: str | os.PathLike | None
) -> None:
    """Check that requested fields do not change what weights mean that were saved with a configuration, if any."""
    if saved is None:
        return
    # Without heads, the fields of heads mean nothing.
    for name in FIELDS_OF_WEIGHTS if saved.ngram_size > 1 else ["ngram_size"]:
        value, saved_value = requested.get(name), getattr(saved, name)
        if value is not None and saved_value is not None and value != saved_value:
            raise ValueError(
                f"`{name}={value}` is not that of {name_or_path}, saved with `{name}={saved_value}`: "
                f"{FIELDS_OF_WEIGHTS[name].format(name=name)}."
            )


def _hub_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in HUB_ARGUMENTS if name in arguments}
