"""N-gram heads on any language model of Transformers, in one call."""

import copy
import dataclasses
import os
import threading
from functools import cache
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING,
)

from .backbone_checks import check_class, check_config, check_model, probe
from .base_wdr_ngram import NgramHeadsMixin
from .checkpoint_wdr_ngram import HUB_ARGUMENTS
from .configuration_wdr_ngram import NgramConfigMixin
from .masked_wdr_ngram import NgramMaskedConfigMixin, NgramMaskedMixin
from .modeling_wdr_ngram import NgramMixin
from .seq2seq_wdr_ngram import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from .t5_wdr_ngram import NgramT5Mixin

PREFIX = "WDRNgram"
TYPE_PREFIX = "wdr_ngram_"
# By the model's type: what Transformers loads it as, with its encoder if it has one.
STOCK_CLASSES = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
# Of the T5 family, those that scale their outputs if their embeddings are tied.
SCALED_IF_TIED = ("switch_transformers", "umt5")
# Backbones that see where a word stands by the attention mask, or by its distance to others.
TOLD_BY_MASK = ("bloom", "mpt")
# The classes that there is a file for, by the class that they are made from.
_NAMED: dict[type[PreTrainedModel], type[NgramHeadsMixin]] = {}
# Two threads must not make the same class twice.
_LOCK = threading.RLock()


def with_ngram_heads(
    model_or_name: PreTrainedModel | str | os.PathLike,
    ngram_size: int = 4,
    ngram_target: str = "wdr",
    **kwargs: Any,
) -> NgramMixin:
    r"""
    Puts fresh N-gram heads on a causal or encoder-decoder language model of Transformers, or on a BERT or ModernBERT
    for masked words. Train them before using the ensemble.

    Args:
        model_or_name (`PreTrainedModel`, `str` or `os.PathLike`):
            A model, which is left as it is (its weights are copied), or the name or folder of a checkpoint.
        ngram_size (`int`, *optional*, defaults to 4): The paper's N; N - 1 heads are added.
        ngram_target (`str`, *optional*, defaults to `"wdr"`): What the heads output, or `"simple"`.
        kwargs (*optional*):
            Other fields of the heads, such as `ensemble_lambda`, `label_smoothing` or `ngram_head_activation`. With a
            name, also whatever `from_pretrained` takes, such as `dtype`, `device_map` or `revision`.

    Returns:
        `PreTrainedModel`: Of a class made from [`NgramMixin`] and the model's own. If that is a class of Transformers,
        what it saves is loaded by `AutoModelForCausalLM` (`AutoModelForSeq2SeqLM`, `AutoModelForMaskedLM`) wherever
        `ngram_wdr_hf` was imported; for a class of your own, call `ngram_class` with it first.
    """
    fields = {"ngram_size": ngram_size, "ngram_target": ngram_target, **kwargs}
    if isinstance(model_or_name, (str, os.PathLike)):
        backbone = _backbone_of_checkpoint(model_or_name, kwargs)
        loaded = _load_with_heads(model_or_name, ngram_class(backbone), fields)
    elif isinstance(model_or_name, PreTrainedModel):
        backbone = type(model_or_name)
        check_model(model_or_name)
        loaded = _copy_with_heads(model_or_name, ngram_class(backbone), fields)
    else:
        raise TypeError(
            f"`with_ngram_heads` takes a model of Transformers or the name of one, got a "
            f"{type(model_or_name).__name__}: take the model out of whatever wraps it, and wrap it again afterwards."
        )
    if backbone not in _NAMED:
        # With `output_loading_info=True`, there is more than a model.
        probe(loaded[0] if isinstance(loaded, tuple) else loaded, backbone)
    return loaded


def ngram_class(backbone: type[PreTrainedModel]) -> type[NgramMixin]:
    """The class that has N-gram heads on a `backbone`: one there is a file for, or one made here."""
    if backbone in _NAMED:
        return _NAMED[backbone]
    with _LOCK:
        return _make_class(backbone)


@cache
def _make_class(backbone: type[PreTrainedModel]) -> type[NgramMixin]:
    check_class(backbone)
    seq2seq_names = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
    is_seq2seq = any(parent.__name__ in seq2seq_names for parent in backbone.__mro__)
    plain_config = backbone.config_class
    model_type = f"{TYPE_PREFIX}{plain_config.model_type}"
    name = plain_config.__name__
    if not _is_stock(backbone):
        # One of several classes with the same configuration; that type is for the one that Transformers loads.
        model_type, name = f"{model_type}_{backbone.__name__.lower()}", f"{backbone.__name__}Config"
    mixin, config_mixin = (
        (NgramSeq2SeqMixin, NgramSeq2SeqConfigMixin) if is_seq2seq else (NgramMixin, NgramConfigMixin)
    )
    # A checkpoint of theirs may bring its code; one of a class made here cannot.
    common = {"__module__": __name__, "_auto_class": None}
    members = dict(common)
    if is_seq2seq and hasattr(plain_config, "initializer_factor") and not _has_base_model(backbone):
        mixin = NgramT5Mixin
        members["base_class"] = MODEL_MAPPING[plain_config]
        members["scales_if_tied"] = plain_config.model_type in SCALED_IF_TIED
    if plain_config.model_type in TOLD_BY_MASK:
        members["rows_can_move"] = True
    config_class = type(
        f"{PREFIX}{name}",
        (config_mixin, plain_config),
        {
            **common,
            "__doc__": f"A [`{plain_config.__name__}`] with the N-gram fields.\n{config_mixin.__doc__}",
            "model_type": model_type,
        },
    )
    model_class = type(
        f"{PREFIX}{backbone.__name__}",
        (mixin, backbone),
        {
            **members,
            "__doc__": f"A [`{backbone.__name__}`] with N-gram heads.\n{mixin.__doc__}",
            "config_class": config_class,
        },
    )
    register(model_class)
    # Where a pickled model looks for them.
    globals().update({made.__name__: made for made in (config_class, model_class)})
    return model_class


def _is_stock(backbone: type[PreTrainedModel]) -> bool:
    """Whether a class is what Transformers loads a configuration as."""
    name = STOCK_CLASSES.get(backbone.config_class.model_type)
    return name == backbone.__name__ and getattr(transformers, name) is backbone


def auto_class_of(is_encoder_decoder: bool, is_masked: bool = False) -> type:
    """The Auto class that loads models of a kind."""
    if is_masked:
        return AutoModelForMaskedLM
    return AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM


def register(model_class: type[PreTrainedModel]) -> type:
    """Lets the Auto classes find a model class by its configuration; returns the one that does."""
    config_class = model_class.config_class
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    auto_class = auto_class_of(
        issubclass(model_class, NgramSeq2SeqMixin), is_masked=issubclass(model_class, NgramMaskedMixin)
    )
    auto_class.register(config_class, model_class, exist_ok=True)
    return auto_class


def register_named(model_class: type[PreTrainedModel]) -> None:
    """`register` for a class with a file: what it saves carries its code, for `trust_remote_code=True`."""
    auto_class = register(model_class)
    model_class.config_class.register_for_auto_class("AutoConfig")
    model_class.register_for_auto_class(auto_class.__name__)
    if issubclass(model_class, NgramHeadsMixin):
        _NAMED[model_class.backbone_class()] = model_class


def register_on_demand() -> None:
    """
    Lets `AutoConfig` know the configurations of all classes that `ngram_class` can make from Transformers' own; they
    are made when a checkpoint asks for them.
    """
    named = {model_class.config_class.model_type for model_class in _NAMED.values()}
    backbones = {f"{TYPE_PREFIX}{name}": model for name, model in STOCK_CLASSES.items()}
    for model_type in backbones.keys() - named:
        members = {"model_type": model_type, "backbone_name": backbones[model_type]}
        AutoConfig.register(model_type, type("ConfigOnDemand", (_ConfigOnDemand,), members), exist_ok=True)


class _ConfigOnDemand(PreTrainedConfig):
    """Stands for a configuration class of ours until it is needed."""

    def __new__(cls, *args, **kwargs) -> PreTrainedConfig:
        return ngram_class(getattr(transformers, cls.backbone_name)).config_class(*args, **kwargs)


def __getattr__(name: str) -> type:
    """`ngram_wdr_hf.backbones.WDRNgramOlmo2ForCausalLM`, which is where a pickled model looks for its class."""
    found = getattr(transformers, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    if isinstance(found, type) and issubclass(found, PreTrainedModel):
        return ngram_class(found)
    if isinstance(found, type) and issubclass(found, PreTrainedConfig) and found.model_type in STOCK_CLASSES:
        return ngram_class(getattr(transformers, STOCK_CLASSES[found.model_type])).config_class
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _backbone_of_checkpoint(name_or_path: str | os.PathLike, kwargs: dict[str, Any]) -> type[PreTrainedModel]:
    """The stock class of a checkpoint."""
    names = (*HUB_ARGUMENTS, "trust_remote_code", "code_revision")
    hub_arguments = {name: kwargs[name] for name in names if name in kwargs}
    try:
        config = AutoConfig.from_pretrained(name_or_path, **hub_arguments)
    except OSError as error:
        reason = " ".join(str(error).split()).removesuffix(".")
        raise OSError(f"There is no model in {name_or_path}, a folder or a name on the Hub ({reason}).") from error
    auto_class = auto_class_of(config.is_encoder_decoder, is_masked(config))
    if isinstance(config, NgramConfigMixin):
        raise ValueError(
            f"{name_or_path} already has N-gram heads (`ngram_size={config.ngram_size}`): load it with "
            f"`{auto_class.__name__}.from_pretrained`."
        )
    mapping = auto_class._model_mapping
    if type(config) not in mapping:
        what = ", ".join(config.architectures or [config.model_type])
        raise ValueError(
            f"{name_or_path} is a {what}, which is neither a causal nor an encoder-decoder language model, "
            "nor a masked one that there are heads for: N-gram heads predict words."
        )
    backbone = mapping[type(config)]
    check_config(config, backbone.__name__)
    return backbone


def is_masked(config: PreTrainedConfig) -> bool:
    """Whether a configuration is that of a masked language model, of ours or one that there are heads for."""
    if isinstance(config, NgramConfigMixin):
        return isinstance(config, NgramMaskedConfigMixin)
    masked = {plain.config_class for plain, made in _NAMED.items() if issubclass(made, NgramMaskedMixin)}
    # What can be both says which it is.
    return type(config) in masked and not getattr(config, "is_decoder", False)


def _has_base_model(backbone: type[PreTrainedModel]) -> bool:
    """Whether a class keeps a base model inside it: the T5 family does not."""
    with torch.device("meta"):
        return hasattr(backbone(backbone.config_class()), backbone.base_model_prefix)


def _load_with_heads(
    name_or_path: str | os.PathLike, model_class: type[NgramMixin], fields: dict[str, Any]
) -> NgramMixin | tuple[NgramMixin, dict]:
    if "config" in fields:
        raise ValueError(
            "`with_ngram_heads` takes a checkpoint's own configuration: give the fields to be changed, not `config`."
        )
    try:
        return model_class.from_pretrained(name_or_path, **fields)
    except TypeError as error:
        config_name = model_class.config_class.__name__
        raise TypeError(
            f"{name_or_path} cannot be loaded ({error}): give fields of a {config_name} or options of "
            "`from_pretrained`."
        ) from error


def _copy_with_heads(plain: PreTrainedModel, model_class: type[NgramMixin], fields: dict[str, Any]) -> NgramMixin:
    mixins = (NgramMaskedConfigMixin, NgramSeq2SeqConfigMixin, NgramConfigMixin)
    mixin = next(mixin for mixin in mixins if issubclass(model_class.config_class, mixin))
    known = [field.name for field in dataclasses.fields(mixin)]
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(
            f"`{unknown[0]}` is no field of N-gram heads ({', '.join(known)}): other fields and options go with a "
            "checkpoint's name, not with a model."
        )
    config_fields = plain.config.to_dict()
    for name in ("model_type", "architectures", "auto_map", "transformers_version", "dtype"):
        config_fields.pop(name, None)
    model = model_class.from_pretrained(
        None,
        config=model_class.config_class(**{**config_fields, **fields}),
        state_dict={name: tensor.clone() for name, tensor in plain.state_dict().items()},
        dtype=plain.dtype,
        attn_implementation=plain.config._attn_implementation,
    )
    model.name_or_path = model.config.name_or_path = plain.config.name_or_path
    if plain.can_generate():
        model.generation_config = copy.deepcopy(plain.generation_config)
    for name, parameter in plain.named_parameters():
        copied = model.get_parameter(name).requires_grad_(parameter.requires_grad)
        copied.data = copied.data.to(parameter.dtype)
    return model.to(plain.device).train(plain.training)
