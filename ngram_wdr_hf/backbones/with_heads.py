"""`with_ngram_heads`: N-gram heads on any language model of Transformers."""

import copy
import os
from typing import Any

from transformers import AutoConfig, PreTrainedModel

from ..method.configuration import NgramConfigMixin, refuse_misspelt
from ..modeling.base import NgramHeadsMixin
from ..modeling.causal import NgramMixin
from ..modeling.checkpoint import HUB_ARGUMENTS, call_for_heads
from .probe import check_config, check_model, probe
from .registry import STOCK_MAPPINGS, auto_class_of, is_masked, is_named, ngram_class


def with_ngram_heads(
    model_or_name: PreTrainedModel | str | os.PathLike[str],
    ngram_size: int = 4,
    ngram_target: str = "wdr",
    **kwargs: Any,
) -> NgramMixin | Any:
    r"""
    Add new N-gram heads to a causal or encoder-decoder language model of Transformers, or to a BERT or ModernBERT for
    masked tokens. Train them before using them. Raise a `ValueError` if the model cannot get heads.

    Args:
        model_or_name (`PreTrainedModel`, `str` or `os.PathLike`):
            A model, which is copied, or a checkpoint's folder or its name on the Hub.
        ngram_size (`int`, *optional*, defaults to 4): The paper's N; N - 1 heads are added.
        ngram_target (`str`, *optional*, defaults to `"wdr"`): What the heads predict, `"wdr"` or `"simple"`.
        kwargs (*optional*):
            Other fields of [`NgramConfigMixin`]. For a checkpoint, also arguments of `from_pretrained`.

    Returns:
        `PreTrainedModel`: A model of a class derived from the backbone and from [`NgramMixin`], or for masked tokens
        from [`NgramMaskedMixin`]. With `output_loading_info=True`, a tuple of it and the loading info. Auto classes
        load its checkpoints once `ngram_wdr_hf` is imported; of a custom class, after `ngram_class(backbone)`.
    """
    fields = {"ngram_size": ngram_size, "ngram_target": ngram_target, **kwargs}
    if isinstance(model_or_name, (str, os.PathLike)):
        backbone = _backbone_of_checkpoint(model_or_name, kwargs)
        loaded: Any = ngram_class(backbone).from_pretrained(model_or_name, **fields)
    elif isinstance(model_or_name, PreTrainedModel):
        backbone = type(model_or_name)
        check_model(model_or_name)
        loaded = _copy_with_heads(model_or_name, ngram_class(backbone), fields)
    else:
        found = f"got a {type(model_or_name).__name__}: unwrap a wrapped model first"
        raise TypeError(f"`model_or_name` must be a model of Transformers or a checkpoint's name, {found}.")
    if not is_named(backbone):
        # With `output_loading_info=True`, it is a tuple.
        probe(loaded[0] if isinstance(loaded, tuple) else loaded, backbone)
    return loaded


def _backbone_of_checkpoint(name_or_path: str | os.PathLike, kwargs: dict[str, Any]) -> type[PreTrainedModel]:
    """Return the stock class of a checkpoint, the one that an Auto class loads."""
    names = (*HUB_ARGUMENTS, "trust_remote_code", "code_revision")
    config = AutoConfig.from_pretrained(name_or_path, **{name: kwargs[name] for name in names if name in kwargs})
    auto_class = auto_class_of(config.is_encoder_decoder, is_masked(config))
    if isinstance(config, NgramConfigMixin):
        raise ValueError(
            f"`{name_or_path}` already has N-gram heads (`ngram_size={config.ngram_size}`). Load it with "
            f"`{auto_class.__name__}.from_pretrained`."
        )
    mapping = STOCK_MAPPINGS[auto_class]
    if type(config) not in mapping:
        architecture = ", ".join(config.architectures or [config.model_type])
        raise ValueError(f"`{name_or_path}` is a {architecture}, which cannot get N-gram heads.")
    backbone = mapping[type(config)]
    check_config(config, backbone.__name__)
    return backbone


def _copy_with_heads(
    plain: PreTrainedModel, model_class: type[NgramHeadsMixin], fields: dict[str, Any]
) -> NgramHeadsMixin:
    """
    Return a model of `model_class` with a copy of the weights of `plain`, and its dtypes, device, mode, frozen
    parameters and generation config. `fields` are the fields of the heads.
    """
    known = model_class.config_class._ngram_fields()
    refuse_misspelt(fields, known)
    if unknown := [name for name in fields if name not in known]:
        raise ValueError(f"`{unknown[0]}` is not a field of the heads: pass it with a checkpoint's name, not a model.")
    # A trunk from a checkpoint with heads keeps their fields, but new heads are not those.
    dropped = {"model_type", "architectures", "auto_map", "transformers_version", "dtype", *known}
    kept = {name: value for name, value in plain.config.to_dict().items() if name not in dropped}
    model: Any = model_class.from_pretrained(
        None,
        config=model_class.config_class(**kept, **fields),
        state_dict={name: tensor.clone() for name, tensor in plain.state_dict().items()},
        dtype=plain.dtype,
        attn_implementation=plain.config._attn_implementation,
    )
    model.config.name_or_path = plain.config.name_or_path
    model.name_or_path = call_for_heads(model.config) if model.config.ngram_size > 1 else plain.config.name_or_path
    if plain.can_generate():
        model.generation_config = copy.deepcopy(plain.generation_config)
    for name, parameter in plain.named_parameters():
        copied = model.get_parameter(name).requires_grad_(parameter.requires_grad)
        copied.data = copied.data.to(parameter.dtype)
    return model.to(plain.device).train(plain.training)
