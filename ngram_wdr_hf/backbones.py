"""N-gram heads on any language model of Transformers, in one call."""

import copy
import os
from functools import cache
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING,
)

from .backbone_checks import check_class, check_complete, check_config, check_model, probe
from .checkpoint_wdr_ngram import HUB_ARGUMENTS
from .configuration_wdr_ngram import NgramConfigMixin
from .modeling_wdr_ngram import NgramMixin
from .seq2seq_wdr_ngram import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from .t5_wdr_ngram import NgramT5Mixin

PREFIX = "WDRNgram"
TYPE_PREFIX = "wdr_ngram_"
# Of the T5 family, those that scale their outputs if their embeddings are tied.
SCALED_IF_TIED = ("switch_transformers", "umt5")
# Backbones that see where a word stands by the attention mask, or by its distance to others.
TOLD_BY_MASK = ("bloom", "mpt")
# The classes that there is a file for, by the class that they are made from.
_NAMED: dict[type[PreTrainedModel], type[NgramMixin]] = {}


def with_ngram_heads(
    model_or_name: PreTrainedModel | str | os.PathLike,
    ngram_size: int = 4,
    ngram_target: str = "wdr",
    **kwargs: Any,
) -> NgramMixin:
    r"""
    Puts fresh N-gram heads on a causal or encoder-decoder language model of Transformers. Train them before using the
    ensemble.

    Args:
        model_or_name (`PreTrainedModel`, `str` or `os.PathLike`):
            A model, which is left as it is (its weights are copied), or the name or folder of a checkpoint.
        ngram_size (`int`, *optional*, defaults to 4): The paper's N; N - 1 heads are added.
        ngram_target (`str`, *optional*, defaults to `"wdr"`): What the heads output, or `"simple"`.
        kwargs (*optional*):
            Other fields of the configuration, such as `ensemble_lambda`, `label_smoothing` or `ngram_head_activation`.
            With a name, also whatever `from_pretrained` takes, such as `dtype`, `device_map` or `revision`.

    Returns:
        `PreTrainedModel`: Of a class made from [`NgramMixin`] and the model's own. What it saves is loaded by
        `AutoModelForCausalLM` (or `AutoModelForSeq2SeqLM`) wherever `ngram_wdr_hf` was imported.
    """
    fields = {"ngram_size": ngram_size, "ngram_target": ngram_target, **kwargs}
    if isinstance(model_or_name, (str, os.PathLike)):
        backbone = _backbone_of_checkpoint(model_or_name, kwargs)
        model_class = ngram_class(backbone)
        returns_loading_info = fields.pop("output_loading_info", False)
        model, info = model_class.from_pretrained(model_or_name, output_loading_info=True, **fields)
        check_complete(model_or_name, model, info)
    elif isinstance(model_or_name, PreTrainedModel):
        backbone = type(model_or_name)
        check_model(model_or_name)
        model_class = ngram_class(backbone)
        returns_loading_info = False
        model, info = _copy_with_heads(model_or_name, model_class, fields)
    else:
        raise TypeError(
            f"`with_ngram_heads` takes a model of Transformers or the name of one, got a "
            f"{type(model_or_name).__name__}: take the model out of whatever wraps it, and wrap it again afterwards."
        )
    if model_class not in _NAMED.values():
        probe(model, backbone)
    return (model, info) if returns_loading_info else model


@cache
def ngram_class(backbone: type[PreTrainedModel]) -> type[NgramMixin]:
    """The class that has N-gram heads on a `backbone`: one there is a file for, or one made here."""
    if backbone in _NAMED:
        return _NAMED[backbone]
    check_class(backbone)
    is_seq2seq = backbone.__name__ in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
    plain_config = backbone.config_class
    model_type = f"{TYPE_PREFIX}{plain_config.model_type}"
    name = plain_config.__name__
    if not is_seq2seq and plain_config.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        # The decoder of an encoder-decoder model alone, which has the same configuration.
        model_type, name = f"{model_type}_decoder", f"Decoder{name}"
    if not _is_stock(backbone):
        # One of several classes with the same configuration; that type is for the one that Transformers loads.
        model_type, name = f"{model_type}_{backbone.__name__.lower()}", f"{backbone.__name__}Config"
    mixin, config_mixin = (
        (NgramSeq2SeqMixin, NgramSeq2SeqConfigMixin) if is_seq2seq else (NgramMixin, NgramConfigMixin)
    )
    members = {"__module__": __name__}
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
            "__module__": __name__,
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
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
    names = {mapping.get(backbone.config_class.model_type) for mapping in mappings}
    return backbone.__name__ in names and getattr(transformers, backbone.__name__, None) is backbone


def auto_class_of(model_class: type[PreTrainedModel]) -> type:
    """The Auto class that loads a model class."""
    return AutoModelForSeq2SeqLM if issubclass(model_class, NgramSeq2SeqMixin) else AutoModelForCausalLM


def register(model_class: type[PreTrainedModel]) -> None:
    """Lets the Auto classes find a model class by its configuration."""
    config_class = model_class.config_class
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    auto_class_of(model_class).register(config_class, model_class, exist_ok=True)


def register_named(model_class: type[PreTrainedModel]) -> None:
    """`register` for a class with a file: what it saves carries its code, for `trust_remote_code=True`."""
    register(model_class)
    model_class.config_class.register_for_auto_class("AutoConfig")
    model_class.register_for_auto_class(auto_class_of(model_class).__name__)
    if issubclass(model_class, NgramMixin):
        _NAMED[model_class.backbone_class()] = model_class


def register_on_demand() -> None:
    """
    Lets `AutoConfig` know the configurations of all classes that `ngram_class` can make from Transformers' own; they
    are made when a checkpoint asks for them.
    """
    named = {model_class.config_class.model_type for model_class in _NAMED.values()}
    backbones = {f"{TYPE_PREFIX}{name}": model for name, model in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
    for name, model in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.items():
        if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            backbones[f"{TYPE_PREFIX}{name}_decoder"] = backbones[f"{TYPE_PREFIX}{name}"]
        backbones[f"{TYPE_PREFIX}{name}"] = model
    for model_type in backbones.keys() - named:
        members = {"model_type": model_type, "backbone_name": backbones[model_type]}
        AutoConfig.register(model_type, type("ConfigOnDemand", (_ConfigOnDemand,), members), exist_ok=True)


class _ConfigOnDemand(PreTrainedConfig):
    """Stands for a configuration class of ours until it is needed."""

    def __new__(cls, *args, **kwargs) -> PreTrainedConfig:
        return ngram_class(getattr(transformers, cls.backbone_name)).config_class(*args, **kwargs)


def __getattr__(name: str) -> type:
    """`ngram_wdr_hf.backbones.WDRNgramOlmo2ForCausalLM`, which is where a pickled model looks for its class."""
    plain = name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""
    found = getattr(transformers, plain, None) or getattr(transformers, plain.removeprefix("Decoder"), None)
    if isinstance(found, type) and issubclass(found, PreTrainedModel):
        return ngram_class(found)
    if isinstance(found, type) and issubclass(found, PreTrainedConfig):
        mapping = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
        if plain.startswith("Decoder") or found.model_type not in mapping:
            mapping = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        if found.model_type in mapping:
            return ngram_class(getattr(transformers, mapping[found.model_type])).config_class
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _backbone_of_checkpoint(name_or_path: str | os.PathLike, kwargs: dict[str, Any]) -> type[PreTrainedModel]:
    """The stock class of a checkpoint."""
    hub_arguments = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
    try:
        config = AutoConfig.from_pretrained(name_or_path, **hub_arguments)
    except OSError as error:
        reason = " ".join(str(error).split()).removesuffix(".")
        raise OSError(f"There is no model in {name_or_path}, a folder or a name on the Hub ({reason}).") from error
    if isinstance(config, NgramConfigMixin):
        raise ValueError(
            f"{name_or_path} already has N-gram heads (`ngram_size={config.ngram_size}`): load it with "
            f"`{'AutoModelForSeq2SeqLM' if config.is_encoder_decoder else 'AutoModelForCausalLM'}.from_pretrained`."
        )
    auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    mapping = auto_class._model_mapping
    if type(config) not in mapping:
        what = ", ".join(config.architectures or [config.model_type])
        raise ValueError(
            f"{name_or_path} is a {what}, which is neither a causal nor an encoder-decoder language model: N-gram "
            "heads predict the words that come next."
        )
    backbone = mapping[type(config)]
    check_config(config, backbone.__name__)
    return backbone


def _has_base_model(backbone: type[PreTrainedModel]) -> bool:
    """Whether a class keeps a base model inside it: the T5 family does not."""
    with torch.device("meta"):
        return hasattr(backbone(backbone.config_class()), backbone.base_model_prefix)


def _copy_with_heads(
    plain: PreTrainedModel, model_class: type[NgramMixin], fields: dict[str, Any]
) -> tuple[NgramMixin, dict]:
    config_fields = plain.config.to_dict()
    left_out = ("model_type", "architectures", "auto_map", "transformers_version", "dtype")
    for name in left_out:
        config_fields.pop(name, None)
    unknown = [name for name in fields if name in left_out or not hasattr(model_class.config_class(), name)]
    if unknown:
        raise ValueError(
            f"`{unknown[0]}` is no field of {model_class.config_class.__name__}: options of `from_pretrained` go with "
            "a checkpoint's name, not with a model."
        )
    config = model_class.config_class(**{**config_fields, **fields})
    model, info = model_class.from_pretrained(
        None,
        config=config,
        output_loading_info=True,
        state_dict={name: tensor.clone() for name, tensor in plain.state_dict().items()},
        dtype=plain.dtype,
        attn_implementation=plain.config._attn_implementation,
    )
    check_complete(f"A {type(plain).__name__} like this one", model, info)
    model.generation_config = copy.deepcopy(plain.generation_config)
    for name, parameter in plain.named_parameters():
        model.get_parameter(name).requires_grad_(parameter.requires_grad)
    return model.to(plain.device).train(plain.training), info
