"""The trunk of a checkpoint with heads as a stock model: what all other Auto classes load."""

import copy

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from ..method.configuration import NgramConfigMixin
from ..modeling.base import NgramHeadsMixin
from ..modeling.checkpoint import logger

# Every table of Transformers from configurations to the classes of one task.
AUTO_MAPPINGS = [getattr(modeling_auto, name) for name in modeling_auto.__all__ if name.endswith("_MAPPING")]
# The weights that only a model with heads has.
HEAD_WEIGHTS = {r"^ngram_heads\.", r"^draft_token_ids$"}


def register_tasks(model_class: type[NgramHeadsMixin]) -> None:
    """
    Register the configuration of `model_class` for every task that Transformers has a class of the backbone's type
    for: `model_class` itself in place of its backbone, otherwise the stock class, without the heads.
    """
    backbone, own_config = model_class.ngram_backbone_class(), model_class.config_class
    for mapping in AUTO_MAPPINGS:
        if backbone.config_class in mapping:
            stock = mapping[backbone.config_class]
            classes = [
                model_class if cls is backbone else _trunk_class(cls)
                for cls in (stock if isinstance(stock, tuple) else (stock,))
            ]
            mapping.register(own_config, classes[0] if len(classes) == 1 else tuple(classes), exist_ok=True)


def stock_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a copy of a configuration, of the stock class and without N-gram fields if it has them."""
    config = copy.deepcopy(config)
    own_class = type(config)
    if issubclass(own_class, NgramConfigMixin):
        parents = (parent for parent in own_class.__mro__ if issubclass(parent, PreTrainedConfig))
        config.__class__ = next(parent for parent in parents if not issubclass(parent, NgramConfigMixin))
        own_fields = own_class.__dataclass_fields__.keys() - config.__dataclass_fields__.keys()
        # Some configurations have their model type as a field, too.
        for name in (*own_fields, "auto_map", "model_type"):
            vars(config).pop(name, None)
        config.architectures = None
    return config


def _trunk_class(stock: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a class that makes models of the class `stock` from configurations and checkpoints with heads."""

    class Trunk(stock):
        def __new__(cls, config: PreTrainedConfig, *args, **kwargs) -> PreTrainedModel:
            model = stock(stock_config(config), *args, **kwargs)
            model._keys_to_ignore_on_load_unexpected |= HEAD_WEIGHTS
            logger.warning(f"{stock.__name__} has no N-gram heads: they are left out.")
            return model

    Trunk.__name__ = Trunk.__qualname__ = stock.__name__
    return Trunk
