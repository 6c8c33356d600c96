"""Paths of metrics for the library `evaluate`, for use as in `evaluate.load(PERPLEXITY)`."""

from pathlib import Path

GLUE, PERPLEXITY, TRANSLATION = (str(Path(__file__).parent / name) for name in ("glue", "perplexity", "translation"))

__all__ = ["GLUE", "PERPLEXITY", "TRANSLATION"]
