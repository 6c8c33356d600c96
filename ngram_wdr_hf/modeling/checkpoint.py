"""Loading and saving: what saved head weights mean, and the code that a checkpoint carries."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from ..method.typing_bases import Backbone

HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "token", "revision", "subfolder")
# Where to publish, as in `push_to_hub`.
PUSH_ARGUMENTS = ("commit_message", "commit_description", "private", "token", "revision", "create_pr", "tags")
OTHER_HEADS = "load it without `{name}`, or add new heads to its trunk, loaded with the stock class"
# The fields that decide what saved weights mean, and what to do instead of changing them. The other fields weigh
# losses and predictions or select the targets of the heads: they may change between two trainings.
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
    Mixin that loads a checkpoint with heads as what it was saved as, and saves one that loads without this package.
    Heads that a checkpoint lacks are new, and Transformers reports them as missing weights.
    """

    @classmethod
    def ngram_backbone_class(cls) -> type[PreTrainedModel]:
        """Return the stock Transformers class that this class adds heads to."""
        parents = (parent for parent in cls.__mro__ if not issubclass(parent, CheckpointMixin))
        return next(parent for parent in parents if issubclass(parent, PreTrainedModel))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *args, **kwargs) -> Self:
        check_fields_of_weights(cls.config_class, pretrained_model_name_or_path, kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        model, info = loaded
        if any(name.startswith("ngram_heads.") for name in info["missing_keys"]):
            model.name_or_path = call_for_heads(model.config)
        return loaded if wants_info else model

    def save_pretrained(self, save_directory: str | os.PathLike, *args, push_to_hub: bool = False, **kwargs) -> None:
        # Trainer resumes by the model's own weight names, and silently ignores all others.
        kwargs.setdefault("save_original_format", False)
        if push_to_hub:
            # Transformers would upload what its own `save_pretrained` writes, without the code file.
            options = {name: kwargs.pop(name) for name in PUSH_ARGUMENTS if name in kwargs}
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **options)
        # Of a class that was loaded from a code file, Transformers copies that file.
        if kwargs.get("is_main_process", True) and not self.is_remote_code():
            self._ngram_write_code(Path(save_directory))
        super().save_pretrained(save_directory, *args, **kwargs)

    def _ngram_write_code(self, folder: Path) -> None:
        """Write the code file, and point the configuration to it."""
        try:  # Transformers wants all other imports of a code file to be installed.
            from ngram_wdr_hf.modeling.code_file import write_code_file
        except ImportError:
            return
        if auto_map := write_code_file(type(self), folder):
            self.config.auto_map = auto_map


def call_for_heads(config: PreTrainedConfig) -> str:
    """
    Return the call that adds heads like those of `config` to its plain checkpoint: the name of a model with new heads.
    PEFT saves that name as the base of an adapter, and would load the plain checkpoint by its own, without heads.
    """
    fields = {name: getattr(config, name) for name in FIELDS_OF_WEIGHTS}
    changed = {name: value for name, value in fields.items() if value != getattr(type(config), name)}
    arguments = {"ngram_size": config.ngram_size, **changed}
    listed = "".join(f", {name}={value!r}" for name, value in arguments.items())
    return f"with_ngram_heads({config.name_or_path!r}{listed})"


def announce(model_class: type[CheckpointMixin]) -> None:
    """
    Let Transformers find a new class with heads where it looks for its own: by name, as `transformers serve` does, and
    in the table of weights that have other names or shapes in checkpoints than in the model.
    """
    # `transformers serve` may have another module object: Transformers executes its `__init__.py` twice.
    server = sys.modules.get("transformers.cli.serving.model_manager")
    for module in (transformers, getattr(server, "transformers", transformers)):
        setattr(module, model_class.__name__, model_class)
    config_class, backbone = model_class.config_class, cast(Any, model_class.ngram_backbone_class())
    for name, own in (
        (backbone.__name__, model_class.__name__),
        (backbone.config_class.model_type, config_class.model_type),
    ):
        conversions = get_checkpoint_conversion_mapping(name)
        if conversions is not None:
            # The code file of a checkpoint may have registered a class of this name.
            register_checkpoint_conversion_mapping(own, conversions, overwrite=True)


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
    if fields.get("model_type") != config_class.model_type:
        # A plain class that saves the trunk keeps the N-gram fields in its configuration, but has no heads.
        return
    saved = config_class.from_dict(fields)
    # Without heads, the fields of heads mean nothing.
    for name in FIELDS_OF_WEIGHTS if saved.ngram_size > 1 else ["ngram_size"]:
        value, saved_value = requested.get(name), getattr(saved, name)
        if value is not None and saved_value is not None and value != saved_value:
            raise ValueError(
                f"`{name}={value}` is not that of {name_or_path}, saved with `{name}={saved_value}`: "
                f"{FIELDS_OF_WEIGHTS[name].format(name=name)}."
            )
