"""Checkpoints that cannot lose their heads."""

import os

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.utils import logging

logger = logging.get_logger(__name__)

HEADS_PREFIX = "ngram_heads."
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "token", "revision", "subfolder")


class CheckpointMixin:
    """
    Loads a plain backbone's checkpoint with fresh heads, and refuses one of ours whose heads are missing or not those
    that the configuration asks for.
    """

    @classmethod
    def ngram_backbone_class(cls) -> type[PreTrainedModel]:
        """The class that the heads are put on."""
        parents = (parent for parent in cls.__mro__ if not issubclass(parent, CheckpointMixin))
        return next(parent for parent in parents if issubclass(parent, PreTrainedModel))

    @classmethod
    def _ngram_share_conversions(cls) -> None:
        """Lets weights that the backbone stores under other names, or in other shapes, be stored so here, too."""
        backbone = cls.ngram_backbone_class()
        names = {cls.__name__: backbone.__name__, cls.config_class.model_type: backbone.config_class.model_type}
        for own_name, name in names.items():
            conversions = get_checkpoint_conversion_mapping(name)
            if conversions is not None:
                register_checkpoint_conversion_mapping(own_name, conversions, overwrite=True)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *args, **kwargs):
        returns_loading_info = kwargs.pop("output_loading_info", False)
        hub_arguments = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        cls._ngram_check_draft_vocab_size(pretrained_model_name_or_path, kwargs, hub_arguments)
        cls._ngram_share_conversions()
        try:
            model, info = super().from_pretrained(
                pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
            )
        except Exception as error:
            # The class is safetensors' own, which a checkpoint's code does not import.
            if type(error).__name__ != "SafetensorError":
                raise
            raise OSError(
                f"The weights of {pretrained_model_name_or_path} are damaged ({error}): save or download them again."
            ) from error
        expected = {name for name in model.state_dict() if name.startswith(HEADS_PREFIX)}
        mismatched = {key[0] for key in info["mismatched_keys"]}
        missing = {name for name in info["missing_keys"] | mismatched if name.startswith(HEADS_PREFIX)}
        unexpected = {name for name in info["unexpected_keys"] if name.startswith(HEADS_PREFIX)}
        if missing or unexpected:
            saved_size = cls._ngram_saved_field("ngram_size", pretrained_model_name_or_path, hub_arguments)
            # Complete heads, or none at all in a checkpoint that never had any; nothing in between.
            if saved_size is not None or unexpected or missing != expected:
                raise ValueError(
                    _refusal(pretrained_model_name_or_path, model.config, saved_size, missing, unexpected)
                )
            what = pretrained_model_name_or_path or f"This {cls.ngram_backbone_class().__name__}"
            _check_trunk(what, model, info["missing_keys"])
            logger.warning(
                f"{what} has no N-gram heads: {len(model.ngram_heads)} fresh heads were added "
                f"(ngram_size={model.config.ngram_size}). Train them before using the ensemble."
            )
        if any(not parameter.is_floating_point() for parameter in model.ngram_heads.parameters()):
            raise ValueError(
                "The heads were quantized with the backbone, and could not be trained: leave `ngram_heads` and the "
                "output embedding out (with bitsandbytes, `llm_int8_skip_modules=['lm_head', 'ngram_heads']`)."
            )
        return (model, info) if returns_loading_info else model

    def save_pretrained(self, *args, **kwargs):
        sharded_class = type(self)
        if sharded_class.__module__.startswith("torch."):
            # FSDP2 derives a class from the model's own; the checkpoint must name, and carry the code of, the latter.
            self.__class__ = sharded_class.__bases__[-1]
        self._ngram_match_draft_tokens()
        self._ngram_share_conversions()
        # Trainer goes on from a checkpoint by the model's own names, and passes over all others in silence.
        kwargs.setdefault("save_original_format", False)
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            self.__class__ = sharded_class

    def _ngram_match_draft_tokens(self) -> None:
        """Makes the tokens that are saved as many as the configuration says, which may have been changed."""
        size, tokens = self.config.draft_vocab_size, getattr(self, "draft_token_ids", None)
        if size is None and tokens is not None:
            del self.draft_token_ids
        elif size is not None and self.ngram_heads and (tokens is None or len(tokens) != size):
            vocabulary = self.ngram_draft_vocabulary(size)
            self.ngram_set_draft_tokens(range(size) if vocabulary is None else vocabulary)

    @classmethod
    def _ngram_check_draft_vocab_size(
        cls, name_or_path: str | os.PathLike | None, kwargs: dict, hub_arguments: dict
    ) -> None:
        asked = kwargs.get("draft_vocab_size", getattr(kwargs.get("config"), "draft_vocab_size", None))
        saved = None if asked is None else cls._ngram_saved_field("draft_vocab_size", name_or_path, hub_arguments)
        if saved is not None and saved != asked:
            raise ValueError(
                f"{name_or_path} was saved with `draft_vocab_size={saved}`, but `draft_vocab_size={asked}` was asked "
                "for: give that to `generate`, or choose other tokens with `ngram_set_draft_tokens` after loading."
            )

    @classmethod
    def _ngram_saved_field(cls, field: str, name_or_path: str | os.PathLike | None, hub_arguments: dict) -> int | None:
        """What a checkpoint of ours declares in its own configuration; `None` for any other checkpoint."""
        if name_or_path is None:
            return None
        try:
            saved, _ = PreTrainedConfig.get_config_dict(name_or_path, **hub_arguments)
        except (OSError, TypeError):  # weights without a configuration, which the caller has given
            return None
        # The plain class keeps our fields when it saves our trunk, and the trunk has no heads to lose.
        return saved.get(field) if saved.get("model_type") == cls.config_class.model_type else None


def _check_trunk(what, model: PreTrainedModel, missing: set[str]) -> None:
    """Raises a `ValueError` unless every weight but the heads' was found."""
    parameters = {name for name, _ in model.named_parameters() if not name.startswith(HEADS_PREFIX)}
    missing = sorted(parameters & set(missing))
    if missing:
        raise ValueError(
            f"{what} is no complete {model.ngram_backbone_class().__name__}: it has no `{missing[0]}` (a model for "
            "another task, or one with an adapter in it, has other weights), and heads on untrained weights learn "
            "nothing."
        )


def _refusal(name_or_path, config, saved_size, missing: set[str], unexpected: set[str]) -> str:
    """Says which heads were asked for, which the checkpoint has, and what to do."""
    asked = f"`ngram_size={config.ngram_size}` asks for {config.ngram_size - 1} heads"
    if saved_size is not None and saved_size != config.ngram_size:
        return (
            f"{name_or_path} was saved with `ngram_size={saved_size}`, but {asked}: load it without `ngram_size`, or "
            "its trunk alone with the plain class of Transformers."
        )
    numbers = {"lacks head": missing, "has a surplus head": unexpected}
    details = " and ".join(
        f"{what} {', '.join(sorted({str(int(name.split('.')[1]) + 1) for name in names}))}"
        for what, names in numbers.items()
        if names
    )
    return (
        f"The weights in {name_or_path} do not have the heads they should: {asked}, and the file {details}. Use the "
        "complete checkpoint, or load its trunk alone with the plain class of Transformers."
    )
