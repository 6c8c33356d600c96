"""Loading and saving: what saved head weights mean, and the code that a checkpoint carries."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from ..method.typing_bases import Backbone

logger = logging.getLogger(__name__)

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "token", "revision", "subfolder")
# Where to publish, as in `push_to_hub`.
PUSH_ARGUMENTS = ("commit_message", "commit_description", "private", "token", "revision", "create_pr", "tags")
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


class CheckpointMixin(Backbone):
    """
    Mixin that loads a checkpoint with heads as what it was saved as, and saves one that loads without this package. A
    plain backbone's checkpoint gets new heads, which Transformers reports as missing weights.
    """

    @classmethod
    def ngram_backbone_class(cls) -> type[PreTrainedModel]:
        """Return the stock Transformers class that this class adds heads to."""
        parents = (parent for parent in cls.__mro__ if not issubclass(parent, CheckpointMixin))
        return next(parent for parent in parents if issubclass(parent, PreTrainedModel))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *args, **kwargs) -> Self:
        check_fields_of_weights(cls.config_class, pretrained_model_name_or_path, kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args, push_to_hub: bool = False, **kwargs) -> None:
        # Trainer resumes by the model's own weight names, and silently ignores all others.
        kwargs.setdefault("save_original_format", False)
        if push_to_hub:
            # Transformers would upload what its own `save_pretrained` writes, without the code file.
            options = {name: kwargs.pop(name) for name in PUSH_ARGUMENTS if name in kwargs}
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **options)
        if kwargs.get("is_main_process", True):
            self._ngram_write_code(save_directory)
        super().save_pretrained(save_directory, *args, **kwargs)

    def _ngram_write_code(self, save_directory: str | os.PathLike) -> None:
        """Write the code file, and point the configuration to it."""
        if self.is_remote_code():
            return  # Transformers copies the file that the class was loaded from.
        try:
            from ngram_wdr_hf.modeling.code_file import write_code_file
        except ImportError:
            return
        auto_map = write_code_file(type(self), Path(save_directory))
        if auto_map:
            self.config.auto_map = auto_map


def announce(model_class: type[CheckpointMixin]) -> None:
    """
    Let Transformers find a class with heads where it looks for its own: by name, as `transformers serve` does, and in
    the table of weights that have other names or shapes in checkpoints than in the model.
    """
    setattr(transformers, model_class.__name__, model_class)
    backbone: Any = model_class.ngram_backbone_class()
    names = {
        model_class.__name__: backbone.__name__,
        model_class.config_class.model_type: backbone.config_class.model_type,
    }
    for own_name, name in names.items():
        conversions = get_checkpoint_conversion_mapping(name)
        if conversions is not None:
            register_checkpoint_conversion_mapping(own_name, conversions, overwrite=True)


def check_fields_of_weights(
    config_class: type[PreTrainedConfig], name_or_path: str | os.PathLike | None, arguments: Mapping[str, Any]
) -> None:
    """
    Check that the arguments of `from_pretrained`, fields or a `config`, do not change what the weights of a checkpoint
    with heads mean.
    """
    config = arguments.get("config")
    hub_arguments = {name: arguments[name] for name in HUB_ARGUMENTS if name in arguments}
    requested = config.to_dict() if isinstance(config, PreTrainedConfig) else arguments
    if isinstance(config, (str, os.PathLike)):
        requested = {**PreTrainedConfig.get_config_dict(config, **hub_arguments)[0], **arguments}
    if name_or_path is None or not FIELDS_OF_WEIGHTS.keys() & requested.keys():
        return
    fields, _ = PreTrainedConfig.get_config_dict(name_or_path, **hub_arguments)
    # A plain class that saves the trunk keeps the N-gram fields in its configuration, but has no heads.
    if fields.get("model_type") == config_class.model_type:
        saved = config_class.from_dict(fields)
        # Without heads, the fields of heads mean nothing.
        compared = FIELDS_OF_WEIGHTS if saved.ngram_size > 1 else ["ngram_size"]
        _refuse_other_fields(saved, requested, compared, name_or_path)


def _refuse_other_fields(saved, requested, compared, name_or_path) -> None:
    for name in compared:
        value, saved_value = requested.get(name), getattr(saved, name)
        if value is not None and saved_value is not None and value != saved_value:
            raise ValueError(
                f"`{name}={value}` is not that of {name_or_path}, saved with `{name}={saved_value}`: "
                f"{FIELDS_OF_WEIGHTS[name].format(name=name)}."
            )
