"""Classes with N-gram heads by backbone: those with a file in this folder, and those made on the spot."""

import logging
import threading
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
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from ..method.configuration import NgramConfigMixin
from ..modeling.base import NgramHeadsMixin
from ..modeling.causal import NgramMixin
from ..modeling.checkpoint import announce
from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from ..modeling.made_class import make_class
from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedMixin
from . import TYPE_PREFIX
from .probe import check_class
from .stock_tasks import register_tasks

logger = logging.getLogger(__name__)

# The files of this folder, by the model type of their backbone.
FILES = {name: name for name in ("bart", "bert", "gpt2", "marian", "modernbert", "reformer", "t5")}
FILES["tensorized_transformer"] = "tensorized"
MASKED_TYPES = ("bert", "modernbert")
# Other model types of the T5 family, and those that scale their outputs if the embeddings are tied.
T5_TYPES = ("longt5", "mt5", "switch_transformers", "umt5")
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
# The classes with heads by backbone, and all registered classes and configurations by name.
_CLASSES: dict[type[PreTrainedModel], type[NgramHeadsMixin]] = {}
_BY_NAME: dict[str, type] = {}
# Two threads must not make the same class twice.
_LOCK = threading.RLock()


def ngram_class(backbone: type[PreTrainedModel]) -> type[NgramHeadsMixin]:
    """
    Return the class with N-gram heads for a `backbone`: the one in this folder, or one that is made at the first call.
    Raise a `ValueError` if the backbone cannot get heads.
    """
    _import_file(backbone.config_class.model_type)
    with _LOCK:
        if backbone not in _CLASSES:
            check_class(backbone)
            register(_make_class(backbone))
    return _CLASSES[backbone]


def is_named(backbone: type[PreTrainedModel]) -> bool:
    """Return whether a backbone has a class with its own file in this folder."""
    return ngram_class(backbone).__module__ != __package__


def _import_file(model_type: str) -> None:
    """Import the file for a backbone's model type, which registers its classes, if there is one."""
    if model_type in FILES:
        import_module(f".{FILES[model_type]}", __package__)


def _make_class(backbone: type[PreTrainedModel]) -> type[NgramHeadsMixin]:
    """Make the class with N-gram heads for a backbone without a file, and its configuration."""
    plain_config, members = backbone.config_class, {}
    model_type, config_name = plain_config.model_type, plain_config.__name__
    own_type, stock_name = f"{TYPE_PREFIX}{model_type}", STOCK_CLASSES.get(model_type)
    # The class that Transformers' Auto classes load: encoder-decoder, if there are a causal and such a one.
    if stock_name != backbone.__name__ or getattr(transformers, stock_name) is not backbone:
        # Several classes share this configuration; its model type is reserved for the stock class.
        own_type, config_name = f"{own_type}_{backbone.__name__.lower()}", f"{backbone.__name__}Config"
    seq2seq_names = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
    mixins = (NgramMixin, NgramConfigMixin)
    if any(parent.__name__ in seq2seq_names for parent in backbone.__mro__):
        mixins = (NgramSeq2SeqMixin, NgramSeq2SeqConfigMixin)
    if model_type in (*T5_TYPES, "t5"):
        from .t5 import NgramT5Mixin

        mixins = (NgramT5Mixin, NgramSeq2SeqConfigMixin)
        members["ngram_base_class"] = MODEL_MAPPING[plain_config]
        members["ngram_scales_if_tied"] = model_type in SCALED_IF_TIED
    if model_type in POSITIONS_BY_MASK:
        members["ngram_rows_can_move"] = True
    # `pickle` looks for the class in this package.
    return make_class(backbone, mixins, config_name, own_type, __package__, members)


def register(model_class: type[PreTrainedModel]) -> None:
    """Register a class and its configuration with the Auto classes: one with heads, or our own plain backbone."""
    config_class = model_class.config_class
    if issubclass(model_class, NgramHeadsMixin):
        backbone, other = model_class.ngram_backbone_class(), _BY_NAME.get(model_class.__name__)
        if other is not None and other.ngram_backbone_class().__module__ != backbone.__module__:
            logger.warning("Two backbones are called %s: checkpoints of both load as the second.", backbone.__name__)
        _CLASSES[backbone] = model_class
        register_tasks(model_class)
        announce(model_class)
    _BY_NAME.update({cls.__name__: cls for cls in (config_class, model_class)})
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    is_seq2seq, is_masked = issubclass(model_class, NgramSeq2SeqMixin), issubclass(model_class, NgramMaskedMixin)
    auto_class_of(is_seq2seq, is_masked).register(config_class, model_class, exist_ok=True)


def auto_class_of(is_encoder_decoder: bool, is_masked: bool = False) -> type:
    """Return the Auto class that loads a kind of model: masked, encoder-decoder, or causal if neither."""
    if is_masked:
        return AutoModelForMaskedLM
    return AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM


def is_masked(config: PreTrainedConfig) -> bool:
    """Return whether a configuration is a masked language model's: one with heads, or one that can get them."""
    if isinstance(config, NgramConfigMixin):
        return isinstance(config, NgramMaskedConfigMixin)
    # `is_decoder` tells apart configurations that serve both.
    return config.model_type in MASKED_TYPES and not getattr(config, "is_decoder", False)


def config_class_of(model_type: str) -> type[PreTrainedConfig]:
    """Return the configuration class of a model type that `AutoConfig` has a placeholder for, made if necessary."""
    backbone_type = model_type.removeprefix(TYPE_PREFIX)
    _import_file(backbone_type)
    if not issubclass(CONFIG_MAPPING[model_type], PreTrainedConfig):
        if backbone_type not in STOCK_CLASSES:
            raise ValueError(
                f"Transformers has no causal or encoder-decoder language model of type `{backbone_type}`."
            )
        ngram_class(getattr(transformers, STOCK_CLASSES[backbone_type]))
    return CONFIG_MAPPING[model_type]


def class_by_name(name: str) -> type | None:
    """Return the model or configuration class of this name, made if necessary; `None` if there is no such backbone."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    stock = getattr(transformers, name.removeprefix("WDRNgram"), None) if name.startswith("WDRNgram") else None
    parents = stock.__mro__ if isinstance(stock, type) else ()
    if PreTrainedModel in parents:
        return ngram_class(stock)
    if PreTrainedConfig in parents and stock.model_type in {*STOCK_CLASSES, *FILES}:
        return config_class_of(f"{TYPE_PREFIX}{stock.model_type}")
    return None
