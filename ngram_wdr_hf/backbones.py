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
        model = model_class.from_pretrained(model_or_name, **fields)
    elif isinstance(model_or_name, PreTrainedModel):
        backbone = type(model_or_name)
        _check_model(model_or_name)
        model_class = ngram_class(backbone)
        model = _copy_with_heads(model_or_name, model_class, fields)
    else:
        raise TypeError(
            f"`with_ngram_heads` takes a model of Transformers or the name of one, got a "
            f"{type(model_or_name).__name__}: take the model out of whatever wraps it, and wrap it again afterwards."
        )
    if model_class not in _NAMED.values():
        _probe(model, backbone)
    return model


@cache
def ngram_class(backbone: type[PreTrainedModel]) -> type[NgramMixin]:
    """The class that has N-gram heads on a `backbone`: one there is a file for, or one made here."""
    if backbone in _NAMED:
        return _NAMED[backbone]
    _check_class(backbone)
    is_seq2seq = backbone.__name__ in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
    plain_config = backbone.config_class
    model_type = f"{TYPE_PREFIX}{plain_config.model_type}"
    name = plain_config.__name__
    if not is_seq2seq and plain_config.model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        # The decoder of an encoder-decoder model alone, which has the same configuration.
        model_type, name = f"{model_type}_decoder", f"Decoder{name}"
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
    return model_class


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
    backbone = getattr(transformers, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    if isinstance(backbone, type) and issubclass(backbone, PreTrainedModel):
        return ngram_class(backbone)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _backbone_of_checkpoint(name_or_path: str | os.PathLike, kwargs: dict[str, Any]) -> type[PreTrainedModel]:
    """The stock class of a checkpoint."""
    hub_arguments = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
    config = AutoConfig.from_pretrained(name_or_path, **hub_arguments)
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
    _check_config(config, backbone.__name__)
    return backbone


def _check_class(backbone: type[PreTrainedModel]) -> None:
    """Raises a `ValueError` for a class that heads cannot be put on."""
    name = backbone.__name__
    if not backbone.can_generate():
        raise ValueError(
            f"A {name} is no causal or encoder-decoder language model, and N-gram heads predict the words that come "
            "next: use the architecture's `ForCausalLM` or `ForConditionalGeneration` class."
        )


def _check_config(config: PreTrainedConfig, name: str) -> None:
    """Raises a `ValueError` for a model that is made of several."""
    if not hasattr(config, "vocab_size"):
        raise ValueError(
            f"A {name} is made of several models, and N-gram heads belong on one that reads and writes text: use its "
            "language model alone."
        )


def _check_model(model: PreTrainedModel) -> None:
    """Raises a `ValueError` for a model without an output embedding that heads could predict through."""
    name = type(model).__name__
    if isinstance(model, NgramMixin):
        raise ValueError(
            f"This {name} already has N-gram heads (`ngram_size={model.config.ngram_size}`): use it as it is, or "
            "begin with the plain model."
        )
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(
            f"A {name} has no output embedding, which N-gram heads predict through: use the architecture's "
            "`ForCausalLM` or `ForConditionalGeneration` class."
        )
    _check_config(model.config, name)


def _has_base_model(backbone: type[PreTrainedModel]) -> bool:
    """Whether a class keeps a base model inside it: the T5 family does not."""
    with torch.device("meta"):
        return hasattr(backbone(backbone.config_class()), backbone.base_model_prefix)


def _copy_with_heads(plain: PreTrainedModel, model_class: type[NgramMixin], fields: dict[str, Any]) -> NgramMixin:
    config_fields = plain.config.to_dict()
    for name in ("model_type", "architectures", "auto_map", "transformers_version", "dtype"):
        config_fields.pop(name, None)
    unknown = [name for name in fields if not hasattr(model_class.config_class(), name)]
    if unknown:
        raise ValueError(
            f"`{unknown[0]}` is no field of {model_class.config_class.__name__}: options of `from_pretrained` go with "
            "a checkpoint's name, not with a model."
        )
    config = model_class.config_class(**{**config_fields, **fields})
    model = model_class.from_pretrained(
        None,
        config=config,
        state_dict={name: tensor.clone() for name, tensor in plain.state_dict().items()},
        dtype=plain.dtype,
        attn_implementation=plain.config._attn_implementation,
    )
    model.generation_config = copy.deepcopy(plain.generation_config)
    for name, parameter in plain.named_parameters():
        model.get_parameter(name).requires_grad_(parameter.requires_grad)
    return model.to(plain.device).train(plain.training)


@torch.no_grad()
def _probe(model: NgramMixin, backbone: type[PreTrainedModel]) -> None:
    """
    Compares the model without heads' help with its own stock class on a few tokens: raises a `ValueError` for one that
    is put together in a way that is not known here, rather than let it be trained wrongly.
    """
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        return
    vocab_size = model._target_vocab_size()
    # The last token is not the same in both rows.
    ids = (torch.arange(12, device=model.device).view(2, 6) * 7 + vocab_size // 2) % vocab_size
    ids[1, :5] = ids[0, :5]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False, "labels": ids}
    if model.config.is_encoder_decoder:
        inputs = {**inputs, "input_ids": ids[:1].expand(2, -1), "decoder_input_ids": ids}
    name = backbone.__name__
    was_training = model.training
    model.eval()
    problem = "it cannot read a few tokens by itself"
    try:
        expected = backbone.forward(model, **inputs)
        problem = "it is not made of a base model that reads tokens and an output embedding"
        found = model(**inputs, ensemble_lambda=0.0)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"N-gram heads cannot be put on a {name}: {problem} ({type(error).__name__}: {reason[:200]})."
        ) from error
    finally:
        model.train(was_training)
    logits = expected.logits
    if not bool(logits.isfinite().all()):
        raise ValueError(f"N-gram heads cannot be put on this {name}: its own logits are not finite numbers.")
    tolerance = 1e-4 if logits.dtype in (torch.float32, torch.float64) else 3e-2
    tolerance = tolerance * float(logits.abs().max())
    if logits.shape != found.logits.shape or not torch.allclose(logits, found.logits, rtol=0.0, atol=tolerance):
        raise ValueError(
            f"N-gram heads cannot be put on a {name}: its logits are not the product of its hidden states and its "
            "output embedding (scaled or soft-capped at most), so that the heads could not predict through it."
        )
    if not torch.allclose(logits[0, :5], logits[1, :5], rtol=0.0, atol=tolerance):
        raise ValueError(
            f"A {name} with this configuration sees the words that it is to predict, as an encoder does: N-gram heads "
            "are for causal models (some architectures have a configuration field `is_decoder` that makes them so)."
        )
    if not torch.allclose(expected.loss.to(found.loss.dtype), found.loss, rtol=0.0, atol=tolerance):
        raise ValueError(
            f"N-gram heads cannot be put on a {name}: its loss for `labels` is not that of the next token. (The "
            "decoder of an encoder-decoder model, for one, does not shift them: use the whole model.)"
        )
