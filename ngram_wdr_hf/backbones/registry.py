"""Classes with N-gram heads by backbone: the named ones, and those created on demand."""

import textwrap
import threading
from functools import cache
from typing import Any

import torch
import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from ..auto_classes import TYPE_PREFIX
from ..method.configuration import NgramConfigMixin
from ..modeling.base import NgramHeadsMixin
from ..modeling.bundle import PACKAGE, ClassStatements, carry_code
from ..modeling.causal import NgramMixin
from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from ..modeling.lookup import offer_by_name
from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedMixin
from .checks import check_class
from .t5 import NgramT5Mixin
from .trunk import register_tasks

PREFIX = "WDRNgram"
# By model type: the language model class of Transformers, encoder-decoder if there is one.
STOCK_CLASSES = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
STOCK_MAPPINGS: dict[type, Any] = {
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForSeq2SeqLM: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoModelForMaskedLM: MODEL_FOR_MASKED_LM_MAPPING,
}
# Model types of the T5 family that scale their outputs if the embeddings are tied.
SCALED_IF_TIED = ("switch_transformers", "umt5")
# Model types that compute positions from the attention mask, or use relative positions.
POSITIONS_BY_MASK = ("bloom", "mpt")
# The named classes, by backbone class.
_NAMED: dict[type[PreTrainedModel], type[NgramHeadsMixin]] = {}
# The registered classes and their configurations, by name.
_BY_NAME: dict[str, type] = {}
# Two threads must not create the same class twice.
_LOCK = threading.RLock()


def ngram_class(backbone: type[PreTrainedModel]) -> type[NgramHeadsMixin]:
    """
    Return the class with N-gram heads for a `backbone`: the named one if there is one, or one that is created at the
    first call. Raise a `ValueError` if the backbone cannot get heads.
    """
    if backbone in _NAMED:
        return _NAMED[backbone]
    with _LOCK:
        return _create_class(backbone)


def is_named(backbone: type[PreTrainedModel]) -> bool:
    """Return whether a backbone has a named class, one with its own file in this folder."""
    return backbone in _NAMED


@cache
def _create_class(backbone: type[PreTrainedModel]) -> type[NgramMixin]:
    """Create the class with N-gram heads and its configuration, and register both with the Auto classes."""
    check_class(backbone)
    statements = _class_statements(backbone)
    # `pickle` looks for the class in this package.
    namespace = {**statements.names, "__name__": __package__}
    exec(statements.source, namespace)
    model_class = namespace[f"{PREFIX}{backbone.__name__}"]
    _register(model_class, statements)
    return model_class


def _class_statements(backbone: type[PreTrainedModel]) -> ClassStatements:
    """
    Return the class statements of the configuration and of the model with heads for a backbone, like those in a file
    of this folder. They are executed to create the classes, and saved with checkpoints.
    """
    plain_config = backbone.config_class
    model_type, config_name = f"{TYPE_PREFIX}{plain_config.model_type}", plain_config.__name__
    if not _is_stock(backbone):
        # Several classes share this configuration; its model type is reserved for the stock class.
        model_type, config_name = f"{model_type}_{backbone.__name__.lower()}", f"{backbone.__name__}Config"
    seq2seq_names = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
    is_seq2seq = any(parent.__name__ in seq2seq_names for parent in backbone.__mro__)
    mixin, config_mixin = (
        (NgramSeq2SeqMixin, NgramSeq2SeqConfigMixin) if is_seq2seq else (NgramMixin, NgramConfigMixin)
    )
    members, base_classes = [f"config_class = {PREFIX}{config_name}"], []
    if is_seq2seq and hasattr(plain_config, "initializer_factor") and not _has_base_model(backbone):
        mixin, base_class = NgramT5Mixin, MODEL_MAPPING[plain_config]
        members += [
            f"ngram_base_class = {base_class.__name__}",
            f"ngram_scales_if_tied = {plain_config.model_type in SCALED_IF_TIED}",
        ]
        base_classes.append(base_class)
    if plain_config.model_type in POSITIONS_BY_MASK:
        members.append("ngram_rows_can_move = True")
    config_doc = f"A [`{plain_config.__name__}`] with the N-gram fields."
    doc = f"A [`{backbone.__name__}`] with N-gram heads."
    source = f'''class {PREFIX}{config_name}({config_mixin.__name__}, {plain_config.__name__}):
    __doc__ = f"""{config_doc}\\n{{{config_mixin.__name__}.__doc__}}"""

    model_type = "{model_type}"


class {PREFIX}{backbone.__name__}({mixin.__name__}, {backbone.__name__}, GenerationMixin):
    __doc__ = f"""{doc}\\n{{{mixin.__name__}.__doc__}}"""

{textwrap.indent(chr(10).join(members), "    ")}'''
    classes = (config_mixin, mixin, plain_config, backbone, GenerationMixin, *base_classes)
    return ClassStatements(source, {cls.__name__: cls for cls in classes})


def _is_stock(backbone: type[PreTrainedModel]) -> bool:
    """
    Return whether a class is the one that Transformers' Auto classes load for its configuration: as a causal or an
    encoder-decoder language model, the latter if there are both.
    """
    name = STOCK_CLASSES.get(backbone.config_class.model_type)
    return name == backbone.__name__ and getattr(transformers, name) is backbone


def auto_class_of(is_encoder_decoder: bool, is_masked: bool = False) -> type:
    """Return the Auto class that loads a kind of model: masked, encoder-decoder, or causal if neither."""
    if is_masked:
        return AutoModelForMaskedLM
    return AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM


def _register(model_class: type[PreTrainedModel], statements: ClassStatements | None = None) -> None:
    """
    Register a model class and its configuration with the Auto classes, offer the class by its name, and let its
    checkpoints carry its code, unless its backbone is third-party code. `statements` are those of a class created on
    demand.
    """
    config_class = model_class.config_class
    _BY_NAME.update({cls.__name__: cls for cls in (config_class, model_class)})
    auto_class = auto_class_of(
        issubclass(model_class, NgramSeq2SeqMixin), is_masked=issubclass(model_class, NgramMaskedMixin)
    )
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    if issubclass(model_class, NgramHeadsMixin):
        register_tasks(model_class)
    auto_class.register(config_class, model_class, exist_ok=True)
    offer_by_name(model_class)
    # The code of a third-party backbone may be missing where the checkpoint is loaded.
    if statements is None or all(
        cls.__module__.startswith(("transformers.", f"{PACKAGE}.")) for cls in statements.names.values()
    ):
        carry_code(model_class, auto_class.__name__, statements)


def register_named(model_class: type[PreTrainedModel]) -> None:
    """Register a class of this folder with the Auto classes and, if it has heads, as the one for its backbone."""
    _register(model_class)
    if issubclass(model_class, NgramHeadsMixin):
        _NAMED[model_class.ngram_backbone_class()] = model_class


def config_class_of(model_type: str) -> type[PreTrainedConfig]:
    """
    Return the configuration class of a model type that `AutoConfig` may have a placeholder for, created if necessary.
    Raise a `ValueError` if there is no such model.
    """
    registered = CONFIG_MAPPING[model_type]
    if issubclass(registered, PreTrainedConfig):
        return registered
    backbone_type = model_type.removeprefix(TYPE_PREFIX)
    if backbone_type not in STOCK_CLASSES:
        raise ValueError(
            f"`{model_type}` is not a model type with N-gram heads: Transformers has no causal or encoder-decoder "
            f"language model of type `{backbone_type}`."
        )
    return ngram_class(getattr(transformers, STOCK_CLASSES[backbone_type])).config_class


def is_masked(config: PreTrainedConfig) -> bool:
    """
    Return whether a configuration belongs to a masked language model: one with heads, or a plain backbone for which
    there is a named masked class.
    """
    if isinstance(config, NgramConfigMixin):
        return isinstance(config, NgramMaskedConfigMixin)
    masked = {plain.config_class for plain, named in _NAMED.items() if issubclass(named, NgramMaskedMixin)}
    # `is_decoder` tells apart configurations that serve both.
    return type(config) in masked and not getattr(config, "is_decoder", False)


def _has_base_model(backbone: type[PreTrainedModel]) -> bool:
    """Return whether a class has its base model as a submodule. Classes of the T5 family do not."""
    with torch.device("meta"):
        return hasattr(backbone(backbone.config_class()), backbone.base_model_prefix)


def class_by_name(name: str) -> type | None:
    """
    Return the model or configuration class with heads of this name, created if necessary. `None` if the name is not
    `WDRNgram` and a language model or configuration class of Transformers.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    stock = getattr(transformers, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    if isinstance(stock, type) and issubclass(stock, PreTrainedModel):
        return ngram_class(stock)
    if isinstance(stock, type) and issubclass(stock, PreTrainedConfig) and stock.model_type in STOCK_CLASSES:
        return ngram_class(getattr(transformers, STOCK_CLASSES[stock.model_type])).config_class
    return None
