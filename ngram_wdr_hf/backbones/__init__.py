"""
Backbones with N-gram heads. Each class with its own file is imported when it is used. `WDRNgram` before the name of
any other language model class of Transformers makes one on the spot.
"""

from importlib import import_module
from typing import Any

from transformers import AutoConfig
from transformers.models.auto import configuration_auto

TYPE_PREFIX = "wdr_ngram_"
# The backbone that is not in Transformers.
OWN_BACKBONE = "tensorized_transformer"


class _ConfigOnDemand(type):
    """
    Class of a placeholder for a configuration class: using it uses that class. `AutoConfig.register` takes only
    classes, and making those of all architectures would import them all.
    """

    model_type: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._config_class(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._config_class, name)

    @property
    def _config_class(cls) -> Any:
        from .registry import config_class_of

        return config_class_of(cls.model_type)


def register_model_types() -> None:
    """Let `AutoConfig` know the model types of all classes with heads."""
    types = [f"{TYPE_PREFIX}{name}" for name in (*configuration_auto.CONFIG_MAPPING_NAMES, OWN_BACKBONE)]
    for model_type in (*types, OWN_BACKBONE):
        placeholder = _ConfigOnDemand("ConfigOnDemand", (), {"model_type": model_type})
        AutoConfig.register(model_type, placeholder, exist_ok=True)


def __getattr__(name: str) -> Any:
    """Return a class with heads or its configuration by its name, as `pickle` does; or the function `ngram_class`."""
    if name == "ngram_class":
        return import_module(".registry", __name__).ngram_class
    if name.startswith("WDRNgram") and (found := import_module(".registry", __name__).class_by_name(name)):
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
