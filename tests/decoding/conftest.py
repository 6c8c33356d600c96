"""Tiny models are decoded with the matrix products of large ones, unless a test says otherwise."""

import pytest

from ngram_wdr_hf.decoding import speculative_decoding


@pytest.fixture(autouse=True)
def products_of_large_models(monkeypatch):
    monkeypatch.setattr(speculative_decoding, "CACHE_BYTES", 0)
