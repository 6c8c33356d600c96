"""Metrics for the library `evaluate`, loaded by their path: `evaluate.load(PERPLEXITY)`."""

from pathlib import Path

GLUE = str(Path(__file__).parent / "glue")
PERPLEXITY = str(Path(__file__).parent / "perplexity")
TRANSLATION = str(Path(__file__).parent / "translation")

__all__ = ["GLUE", "PERPLEXITY", "TRANSLATION"]
