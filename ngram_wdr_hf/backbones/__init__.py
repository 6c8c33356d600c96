"""The backbones that get N-gram heads: a small file a named class, and `with_ngram_heads` for all others."""

from .checks import probe
from .registry import class_by_name, ngram_class
from .with_heads import with_ngram_heads

__all__ = ["ngram_class", "probe", "with_ngram_heads"]


def __getattr__(name: str) -> type:
    """`ngram_wdr_hf.backbones.WDRNgramOlmo2ForCausalLM`, which is where a pickled model looks for its class."""
    made = class_by_name(name)
    if made is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return made
