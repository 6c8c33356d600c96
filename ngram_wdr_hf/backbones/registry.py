"""Classes with N-gram heads by backbone: those with a file in this folder, and those made on the spot."""

import inspect
import threading
from functools import cache
from importlib import import_module
from typing import Any

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

from ..method.configuration import NgramConfigMixin
from ..modeling.base import OWN_ARGUMENTS, NgramHeadsMixin, takes_arguments_of
from ..modeling.causal import NgramMixin
from ..modeling.checkpoint import announce
from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedMixin
from . import TYPE_PREFIX
from .probe import check_class
from .stock_tasks import register_tasks

PREFIX = "WDRNgram"
# The files of this folder, by the model type of their backbone.
FILES = {
    "bart": "bart",
    "bert": "bert",
    "gpt2": "gpt2",
    "marian": "marian",
    "modernbert": "modernbert",
    "reformer": "reformer",
    "t5": "t5",
    "tensorized_transformer": "tensorized",
}
MASKED_TYPES = ("bert", "modernbert")
# Other model types of the T5 family.
T5_TYPES = ("longt5", "mt5", "switch_transformers", "umt5")
# Model types of the T5 family that scale their outputs if the embeddings are tied.
SCALED_IF_TIED = ("switch_transformers", "umt5")
# Model types that compute positions from the attention mask, or use relative positions.
POSITIONS_BY_MASK = ("bloom", "mpt")
# By model type: the language model class of Transformers, encoder-decoder if there is one.
STOCK_CLASSES = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
STOCK_MAPPINGS: dict[type, Any] = {
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForSeq2SeqLM: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoModelForMaskedLM: MODEL_FOR_MASKED_LM_MAPPING,
}
# The classes that have a file, by backbone class.
_NAMED: dict[type[PreTrainedModel], type[NgramHeadsMixin]] = {}
# The registered classes and their configurations, by name.
_BY_NAME: dict[str, type] = {}
# Two threads must not make the same class twice.
_LOCK = threading.RLock()


def ngram_class(backbone: type[PreTrainedModel]) -> type[NgramHeadsMixin]:
    """
    Return the class with N-gram heads for a `backbone`: the one in this folder, or one that is made at the first call.
    Raise a `ValueError` if the backbone cannot get heads.
    """
    if is_named(backbone):
        return _NAMED[backbone]
    with _LOCK:
        return _make_class(backbone)


def is_named(backbone: type[PreTrainedModel]) -> bool:
    """Return whether a backbone has a class with its own file in this folder."""
    _import_file(backbone.config_class.model_type)
    return backbone in _NAMED


def _import_file(model_type: str) -> None:
    """Import the file for a backbone's model type, which registers its classes, if there is one."""
    if model_type in FILES:
        import_module(f".{FILES[model_type]}", __package__)


@cache
def _make_class(backbone: type[PreTrainedModel]) -> type[NgramHeadsMixin]:
    """Make the class with N-gram heads and its configuration, and register both with the Auto classes."""
    check_class(backbone)
    plain_config = backbone.config_class
    model_type, config_name = plain_config.model_type, plain_config.__name__
    own_type = f"{TYPE_PREFIX}{model_type}"
    if not _is_stock(backbone):
        # Several classes share this configuration; its model type is reserved for the stock class.
        own_type, config_name = f"{own_type}_{backbone.__name__.lower()}", f"{backbone.__name__}Config"
    mixin, config_mixin, members = NgramMixin, NgramConfigMixin, {}
    seq2seq_names = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
    if any(parent.__name__ in seq2seq_names for parent in backbone.__mro__):
        mixin, config_mixin = NgramSeq2SeqMixin, NgramSeq2SeqConfigMixin
    if model_type in (*T5_TYPES, "t5"):
        from .t5 import NgramT5Mixin

        mixin = NgramT5Mixin
        members["ngram_base_class"] = MODEL_MAPPING[plain_config]
        members["ngram_scales_if_tied"] = model_type in SCALED_IF_TIED
    if model_type in POSITIONS_BY_MASK:
        members["ngram_rows_can_move"] = True

    def make(name: str, bases: tuple[type, ...], doc: str, **members: Any) -> Any:
        # `pickle` looks for the class in this package.
        return type(f"{PREFIX}{name}", bases, {"__module__": __package__, "__doc__": doc, **members})

    doc = f"A [`{plain_config.__name__}`] with the N-gram fields: see [`{config_mixin.__name__}`]."
    config_class = make(config_name, (config_mixin, plain_config), doc, model_type=own_type)
    doc = f"A [`{backbone.__name__}`] with N-gram heads: see [`{mixin.__name__}`]."
    bases = (mixin, backbone, GenerationMixin)
    model_class = make(backbone.__name__, bases, doc, config_class=config_class, **members)
    own_arguments = [name for name in inspect.signature(mixin.forward).parameters if name not in OWN_ARGUMENTS]
    if own_arguments != list(inspect.signature(backbone.forward).parameters):
        model_class = takes_arguments_of(backbone)(model_class)
    register(model_class, is_named=False)
    return model_class


def _is_stock(backbone: type[PreTrainedModel]) -> bool:
    """
    Return whether a class is the one that Transformers' Auto classes load for its configuration: as a causal or an
    encoder-decoder language model, the latter if there are both.
    """
    name = STOCK_CLASSES.get(backbone.config_class.model_type)
    return name == backbone.__name__ and getattr(transformers, name) is backbone


def register(model_class: type[PreTrainedModel], is_named: bool = True) -> None:
    """
    Register a model class and its configuration with the Auto classes: one with heads, or our own plain backbone.
    `is_named` tells that it has a file in this folder.
    """
    config_class = model_class.config_class
    _BY_NAME.update({cls.__name__: cls for cls in (config_class, model_class)})
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    if issubclass(model_class, NgramHeadsMixin):
        register_tasks(model_class)
        announce(model_class)
        if is_named:
            _NAMED[model_class.ngram_backbone_class()] = model_class
    is_seq2seq, is_masked = issubclass(model_class, NgramSeq2SeqMixin), issubclass(model_class, NgramMaskedMixin)
    auto_class_of(is_seq2seq, is_masked).register(config_class, model_class, exist_ok=True)


def auto_class_of(is_encoder_decoder: bool, is_masked: bool = False) -> type:
    """Return the Auto class that loads a kind of model: masked, encoder-decoder, or causal if neither."""
    if is_masked:
        return AutoModelForMaskedLM
    return AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM


def is_masked(config: PreTrainedConfig) -> bool:
    """
    Return whether a configuration belongs to a masked language model: one with heads, or a plain backbone for which
    there is a masked class in this folder.
    """
    if isinstance(config, NgramConfigMixin):
        return isinstance(config, NgramMaskedConfigMixin)
    # `is_decoder` tells apart configurations that serve both.
    return config.model_type in MASKED_TYPES and not getattr(config, "is_decoder", False)


def config_class_of(model_type: str) -> type[PreTrainedConfig]:
    """
    Return the configuration class of a model type that `AutoConfig` may have a placeholder for, made if necessary.
    Raise a `ValueError` if there is no such model.
    """
    backbone_type = model_type.removeprefix(TYPE_PREFIX)
    _import_file(backbone_type)
    if not issubclass(CONFIG_MAPPING[model_type], PreTrainedConfig):
        if backbone_type not in STOCK_CLASSES:
            raise ValueError(
                f"`{model_type}` is not a model type with N-gram heads: Transformers has no causal or encoder-decoder "
                f"language model of type `{backbone_type}`."
            )
        ngram_class(getattr(transformers, STOCK_CLASSES[backbone_type]))
    return CONFIG_MAPPING[model_type]


def class_by_name(name: str) -> type | None:
    """
    Return the model or configuration class with heads of this name, made if necessary. `None` if the name is not
    `WDRNgram` and a language model or configuration class of Transformers.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    stock = getattr(transformers, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    if isinstance(stock, type) and issubclass(stock, PreTrainedModel):
        return ngram_class(stock)
    if (
        isinstance(stock, type)
        and issubclass(stock, PreTrainedConfig)
        and stock.model_type in {*STOCK_CLASSES, *FILES}
    ):
        return config_class_of(f"{TYPE_PREFIX}{stock.model_type}")
    return None
