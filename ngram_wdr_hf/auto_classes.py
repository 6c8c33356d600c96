"""
Our model types in `AutoConfig`, without an import of Transformers: that takes seconds, which `import ngram_wdr_hf` and
`ngram-wdr --help` should not.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TYPE_PREFIX = "wdr_ngram_"
# Defines `AutoConfig`. Every Auto class imports it.
AUTO_CONFIG_MODULE = "transformers.models.auto.configuration_auto"
# The backbone that is not in Transformers.
OWN_BACKBONE = "tensorized_transformer"


def register_model_types() -> None:
    """
    Let `AutoConfig` know the model types of all classes with heads: now if Transformers' Auto classes are imported,
    else as soon as they are. The model classes are imported or created when a checkpoint needs them.
    """
    if AUTO_CONFIG_MODULE in sys.modules:
        _register(sys.modules[AUTO_CONFIG_MODULE])
    else:
        sys.meta_path.insert(0, _AutoConfigFinder())


class _AutoConfigFinder(MetaPathFinder):
    """Finder that completes the module of `AutoConfig` when it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != AUTO_CONFIG_MODULE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _register(module)

            spec.loader.exec_module = exec_module
        return spec


class _OnDemand(type):
    """Class of a placeholder for a configuration class: to use it is to use that class, which is made for it."""

    model_type: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._config_class(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls._config_class, name)

    @property
    def _config_class(cls) -> Any:
        from .backbones.registry import config_class_of

        return config_class_of(cls.model_type)


def _register(auto: ModuleType) -> None:
    """Register placeholders with `AutoConfig`; `auto` is its module, of which more may not be imported yet."""
    model_types = [f"{TYPE_PREFIX}{name}" for name in (*auto.CONFIG_MAPPING_NAMES, OWN_BACKBONE)]
    for model_type in (*model_types, OWN_BACKBONE):
        if model_type not in auto.CONFIG_MAPPING:
            auto.AutoConfig.register(model_type, _OnDemand("ConfigOnDemand", (), {"model_type": model_type}))
