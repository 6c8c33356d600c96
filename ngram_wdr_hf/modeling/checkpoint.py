"""Loading and saving checkpoints without losing a head."""

import os
from typing import Any, Literal, Self, overload

from transformers import PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.utils import logging

from ..method.mixin_bases import Backbone
from .saved import check_fields_of_weights, naming_missing, saved_config

logger = logging.get_logger(__name__)

HEADS_PREFIX = "ngram_heads."


class CheckpointMixin(Backbone):
    """
    Mixin that loads a plain backbone's checkpoint with new heads, and rejects a checkpoint with heads if they are
    incomplete or do not match the configuration.
    """

    @classmethod
    def ngram_backbone_class(cls) -> type[PreTrainedModel]:
        """Return the stock Transformers class that this class adds heads to."""
        parents = (parent for parent in cls.__mro__ if not issubclass(parent, CheckpointMixin))
        return next(parent for parent in parents if issubclass(parent, PreTrainedModel))

    @classmethod
    def _ngram_share_conversions(cls) -> None:
        """
        Register the backbone's weight conversions for this class, too. They translate weights that have other names or
        shapes in checkpoints than in the model.
        """
        backbone: Any = cls.ngram_backbone_class()
        names = {cls.__name__: backbone.__name__, cls.config_class.model_type: backbone.config_class.model_type}
        for own_name, name in names.items():
            conversions = get_checkpoint_conversion_mapping(name)
            if conversions is not None:
                register_checkpoint_conversion_mapping(own_name, conversions, overwrite=True)

    @overload
    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *args: Any,
        output_loading_info: Literal[True],
        **kwargs: Any,
    ) -> tuple[Self, dict[str, Any]]: ...

    @overload
    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike | None, *args: Any, **kwargs: Any
    ) -> Self: ...

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *args, **kwargs):
        returns_loading_info = kwargs.pop("output_loading_info", False)
        cls._ngram_share_conversions()
        try:
            with naming_missing(pretrained_model_name_or_path):
                check_fields_of_weights(cls.config_class, pretrained_model_name_or_path, kwargs)
                loaded: Any = super().from_pretrained(
                    pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
                )
        except Exception as error:
            # Compared by name: a checkpoint's code file does not import safetensors.
            if type(error).__name__ != "SafetensorError":
                raise
            raise OSError(
                f"`{pretrained_model_name_or_path}` has damaged weights ({error}). Save or download them again."
            ) from error
        model, info = loaded
        for name, keys in model.__dict__.pop("_ngram_unmatched").items():
            info[name] |= keys
        expected = {name for name in model.state_dict() if name.startswith(HEADS_PREFIX)}
        mismatched = {key[0] for key in info["mismatched_keys"]}
        missing = {name for name in info["missing_keys"] | mismatched if name.startswith(HEADS_PREFIX)}
        unexpected = {name for name in info["unexpected_keys"] if name.startswith(HEADS_PREFIX)}
        if missing or unexpected:
            has_heads = saved_config(cls.config_class, pretrained_model_name_or_path, kwargs) is not None
            # Valid are complete heads, or none in a plain backbone's checkpoint.
            if has_heads or unexpected or missing != expected:
                raise ValueError(_head_mismatch(pretrained_model_name_or_path, model.config, missing, unexpected))
            source = pretrained_model_name_or_path or f"This {cls.ngram_backbone_class().__name__}"
            _check_trunk(source, model, info["missing_keys"])
            logger.warning(
                f"{source} has no N-gram heads: added {len(model.ngram_heads)} "
                f"(ngram_size={model.config.ngram_size}). Train the heads before using the ensemble."
            )
        if any(not parameter.is_floating_point() for parameter in model.ngram_heads.parameters()):
            raise ValueError(
                "`ngram_heads` must not be quantized: exclude them and the output embedding from quantization (with "
                "bitsandbytes, `llm_int8_skip_modules=['lm_head', 'ngram_heads']`)."
            )
        return (model, info) if returns_loading_info else model

    def save_pretrained(self, *args, **kwargs):
        sharded_class = type(self)
        if sharded_class.__module__.startswith("torch."):
            # FSDP2 subclasses the model's class; the checkpoint must name the original class and contain its code.
            self.__class__ = sharded_class.__bases__[-1]
        self._ngram_share_conversions()
        # Trainer resumes by the model's own weight names, and silently ignores all others.
        kwargs.setdefault("save_original_format", False)
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            self.__class__ = sharded_class

    def _adjust_missing_and_unexpected_keys(self, loading_info) -> None:
        super()._adjust_missing_and_unexpected_keys(loading_info)
        # `from_pretrained` adds one line about the heads or raises an error; Transformers would print a table.
        self._ngram_unmatched = {
            name: {key for key in keys if key.startswith(HEADS_PREFIX)}
            for name, keys in (
                ("missing_keys", loading_info.missing_keys),
                ("unexpected_keys", loading_info.unexpected_keys),
            )
        }
        loading_info.missing_keys -= self._ngram_unmatched["missing_keys"]
        loading_info.unexpected_keys -= self._ngram_unmatched["unexpected_keys"]


def _check_trunk(source, model: CheckpointMixin, missing_keys: set[str]) -> None:
    """Raise a `ValueError` if one of the `missing_keys` of the checkpoint `source` belongs to the trunk."""
    parameters = {name for name, _ in model.named_parameters() if not name.startswith(HEADS_PREFIX)}
    missing = sorted(parameters & set(missing_keys))
    if missing:
        raise ValueError(
            f"{source} is not a complete {model.ngram_backbone_class().__name__}: `{missing[0]}` is missing. Use a "
            "trained checkpoint of that class, not of another task and without an adapter in it."
        )


def _head_mismatch(name_or_path, config, missing: set[str], unexpected: set[str]) -> str:
    """
    Return the error message for a checkpoint whose heads do not match the configuration. `missing` and `unexpected`
    are names of head weights.
    """
    requested = f"`ngram_size={config.ngram_size}` needs {config.ngram_size - 1} heads"
    problems = {"lacks head": missing, "has an unexpected head": unexpected}
    details = " and ".join(
        f"{problem} {', '.join(sorted({str(int(name.split('.')[1]) + 1) for name in names}))}"
        for problem, names in problems.items()
        if names
    )
    return (
        f"{requested}, but {name_or_path} {details}. Use the complete checkpoint, or load its trunk with the stock "
        "Transformers class."
    )
