"""Which class has N-gram heads on which backbone: those with a file here, and those made on demand."""

import textwrap
import threading
from functools import cache

import torch
import transformers
from transformers import (
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
from ..modeling.bundle import PACKAGE, ClassStatements, carry_code
from ..modeling.causal import NgramMixin
from ..modeling.encoder_decoder import NgramSeq2SeqConfigMixin, NgramSeq2SeqMixin
from ..modeling.masked import NgramMaskedConfigMixin, NgramMaskedMixin
from .checks import check_class
from .t5 import NgramT5Mixin

PREFIX = "WDRNgram"
TYPE_PREFIX = "wdr_ngram_"
# By the model's type: what Transformers loads it as, with its encoder if it has one.
STOCK_CLASSES = {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
STOCK_MAPPINGS = {
    AutoModelForCausalLM: MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForSeq2SeqLM: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoModelForMaskedLM: MODEL_FOR_MASKED_LM_MAPPING,
}
# Of the T5 family, those that scale their outputs if their embeddings are tied.
SCALED_IF_TIED = ("switch_transformers", "umt5")
# Backbones that see where a word stands by the attention mask, or by its distance to others.
TOLD_BY_MASK = ("bloom", "mpt")
# The classes with a file, by the backbone's class.
_NAMED: dict[type[PreTrainedModel], type[NgramHeadsMixin]] = {}
# The classes made on demand and their configurations, by name.
_MADE: dict[str, type] = {}
# Two threads must not make the same class twice.
_LOCK = threading.RLock()


def ngram_class(backbone: type[PreTrainedModel]) -> type[NgramMixin]:
    """The class that has N-gram heads on a `backbone`: one there is a file for, or one made here."""
    if backbone in _NAMED:
        return _NAMED[backbone]
    with _LOCK:
        return _make_class(backbone)


def is_named(backbone: type[PreTrainedModel]) -> bool:
    """Whether a backbone has a class with a file here."""
    return backbone in _NAMED


@cache
def _make_class(backbone: type[PreTrainedModel]) -> type[NgramMixin]:
    check_class(backbone)
    statements = _class_statements(backbone)
    # The package is where a pickled model looks for its class.
    namespace = {**statements.names, "__name__": __package__}
    exec(statements.source, namespace)
    model_class = namespace[f"{PREFIX}{backbone.__name__}"]
    _register(model_class, statements)
    _MADE.update({made.__name__: made for made in (model_class.config_class, model_class)})
    return model_class


def _class_statements(backbone: type[PreTrainedModel]) -> ClassStatements:
    """What a file of this folder would say for a backbone. The classes are made from it, and checkpoints carry it."""
    plain_config = backbone.config_class
    model_type, config_name = f"{TYPE_PREFIX}{plain_config.model_type}", plain_config.__name__
    if not _is_stock(backbone):
        # One of several classes with the same configuration; that type is for the one that Transformers loads.
        model_type, config_name = f"{model_type}_{backbone.__name__.lower()}", f"{backbone.__name__}Config"
    seq2seq_names = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()
    is_seq2seq = any(parent.__name__ in seq2seq_names for parent in backbone.__mro__)
    mixin, config_mixin = (
        (NgramSeq2SeqMixin, NgramSeq2SeqConfigMixin) if is_seq2seq else (NgramMixin, NgramConfigMixin)
    )
    members, mentioned = [f"config_class = {PREFIX}{config_name}"], []
    if is_seq2seq and hasattr(plain_config, "initializer_factor") and not _has_base_model(backbone):
        mixin, base_class = NgramT5Mixin, MODEL_MAPPING[plain_config]
        members += [
            f"ngram_base_class = {base_class.__name__}",
            f"ngram_scales_if_tied = {plain_config.model_type in SCALED_IF_TIED}",
        ]
        mentioned.append(base_class)
    if plain_config.model_type in TOLD_BY_MASK:
        members.append("ngram_rows_can_move = True")
    config_doc = f"A [`{plain_config.__name__}`] with the N-gram fields."
    doc = f"A [`{backbone.__name__}`] with N-gram heads."
    source = f'''class {PREFIX}{config_name}({config_mixin.__name__}, {plain_config.__name__}):
    __doc__ = f"""{config_doc}\\n{{{config_mixin.__name__}.__doc__}}"""

    model_type = "{model_type}"


class {PREFIX}{backbone.__name__}({mixin.__name__}, {backbone.__name__}):
    __doc__ = f"""{doc}\\n{{{mixin.__name__}.__doc__}}"""

{textwrap.indent(chr(10).join(members), "    ")}'''
    classes = (config_mixin, mixin, plain_config, backbone, *mentioned)
    return ClassStatements(source, {cls.__name__: cls for cls in classes})


def _is_stock(backbone: type[PreTrainedModel]) -> bool:
    """Whether a class is what Transformers loads a configuration as."""
    name = STOCK_CLASSES.get(backbone.config_class.model_type)
    return name == backbone.__name__ and getattr(transformers, name) is backbone


def auto_class_of(is_encoder_decoder: bool, is_masked: bool = False) -> type:
    """The Auto class that loads models of a kind."""
    if is_masked:
        return AutoModelForMaskedLM
    return AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM


def _register(model_class: type[PreTrainedModel], statements: ClassStatements | None = None) -> None:
    """Lets the Auto classes find a model class by its configuration, and its checkpoints carry its code."""
    config_class = model_class.config_class
    auto_class = auto_class_of(
        issubclass(model_class, NgramSeq2SeqMixin), is_masked=issubclass(model_class, NgramMaskedMixin)
    )
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    auto_class.register(config_class, model_class, exist_ok=True)
    # The code of a backbone from elsewhere cannot be imported wherever the checkpoint is loaded.
    if statements is None or all(
        cls.__module__.startswith(("transformers.", f"{PACKAGE}.")) for cls in statements.names.values()
    ):
        carry_code(model_class, auto_class.__name__, statements)


def register_named(model_class: type[PreTrainedModel]) -> None:
    """Registers a class with a file of its own."""
    _register(model_class)
    if issubclass(model_class, NgramHeadsMixin):
        _NAMED[model_class.ngram_backbone_class()] = model_class


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


def class_by_name(name: str) -> type | None:
    """A class made on demand, or its configuration; `None` for a name that is neither."""
    if name in _MADE:
        return _MADE[name]
    stock = getattr(transformers, name.removeprefix(PREFIX), None) if name.startswith(PREFIX) else None
    if isinstance(stock, type) and issubclass(stock, PreTrainedModel):
        return ngram_class(stock)
    if isinstance(stock, type) and issubclass(stock, PreTrainedConfig) and stock.model_type in STOCK_CLASSES:
        return ngram_class(getattr(transformers, STOCK_CLASSES[stock.model_type])).config_class
    return None
