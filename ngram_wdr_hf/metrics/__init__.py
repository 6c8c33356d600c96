"""Metrics for the library `evaluate`, loaded by their path: `evaluate.load(PERPLEXITY)`."""

from pathlib import Path

PERPLEXITY = str(Path(__file__).parent / "perplexity")
TRANSLATION = str(Path(__file__).parent / "translation")

__all__ = ["PERPLEXITY", "TRANSLATION"]
