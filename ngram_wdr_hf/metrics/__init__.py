"""Paths of metrics for the library `evaluate`, for use as in `evaluate.load(PERPLEXITY)`."""

from pathlib import Path

GLUE = str(Path(__file__).parent / "glue")
PERPLEXITY = str(Path(__file__).parent / "perplexity")
TRANSLATION = str(Path(__file__).parent / "translation")

__all__ = ["GLUE", "PERPLEXITY", "TRANSLATION"]
