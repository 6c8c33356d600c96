"""Backbones with N-gram heads: one small file per named class, and `with_ngram_heads` for all others."""

from .checks import probe
from .registry import class_by_name, ngram_class
from .with_heads import with_ngram_heads

__all__ = ["ngram_class", "probe", "with_ngram_heads"]


def __getattr__(name: str) -> type:
    """
    Return a class with heads by its name, `backbones.WDRNgramOlmo2ForCausalLM`, created if necessary. `pickle` looks
    up classes in this way. Raise an `AttributeError` for any other name.
    """
    created = class_by_name(name)
    if created is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return created
