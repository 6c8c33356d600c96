"""Tiny models are decoded with the matrix products of large ones, unless a test says otherwise."""

import pytest

from ngram_wdr_hf.decoding import few_tokens


@pytest.fixture(autouse=True)
def products_of_large_models(monkeypatch):
    monkeypatch.setattr(few_tokens, "CACHE_BYTES", 0)
