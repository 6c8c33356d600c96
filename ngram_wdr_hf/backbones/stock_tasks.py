"""The stock model in a checkpoint with heads: what all other Auto classes load."""

import copy
import logging

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from ..method.configuration import NgramConfigMixin
from ..modeling.base import NgramHeadsMixin

logger = logging.getLogger(__name__)

# Every table of Transformers from configurations to the classes of one task.
AUTO_MAPPINGS = [getattr(modeling_auto, name) for name in modeling_auto.__all__ if name.endswith("_MAPPING")]
# The weights that only a model with heads has.
HEAD_WEIGHTS = {r"^ngram_heads\.", r"^draft_token_ids$"}


def register_tasks(model_class: type[NgramHeadsMixin]) -> None:
    """
    Register the configuration of `model_class` for every task of its backbone's type: with `model_class` itself in
    place of its backbone, otherwise with the stock class, without the heads.
    """
    backbone, own_config = model_class.ngram_backbone_class(), model_class.config_class
    for mapping in AUTO_MAPPINGS:
        if backbone.config_class in mapping:
            stock = mapping[backbone.config_class]
            stock = stock if isinstance(stock, tuple) else (stock,)
            classes = tuple(model_class if cls is backbone else _without_heads(cls) for cls in stock)
            mapping.register(own_config, classes[0] if len(classes) == 1 else classes, exist_ok=True)


def stock_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return a copy of a configuration, of the stock class and without N-gram fields if it has them."""
    if not isinstance(config, NgramConfigMixin):
        return copy.deepcopy(config)
    dropped = (*config._ngram_fields(), "architectures", "auto_map", "model_type", "transformers_version")
    fields = {name: value for name, value in config.to_dict().items() if name not in dropped}
    # Set afterwards, as a configuration allows it, but not together with every number of labels.
    problem_type = fields.pop("problem_type", None)
    stock = config._ngram_backbone_config()(**fields, attn_implementation=config._attn_implementation)
    stock.problem_type = problem_type
    return stock


def _without_heads(stock: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return a class whose instances are of the class `stock`: the tables of Transformers take only classes."""

    class WithoutHeads(stock):
        def __new__(cls, config: PreTrainedConfig, *args, **kwargs) -> PreTrainedModel:
            model = stock(stock_config(config), *args, **kwargs)
            model._keys_to_ignore_on_load_unexpected |= HEAD_WEIGHTS
            logger.warning("%s has no N-gram heads: they are left out.", stock.__name__)
            return model

    WithoutHeads.__name__ = WithoutHeads.__qualname__ = stock.__name__
    return WithoutHeads
