"""Tiny models are decoded with the matrix products of large ones, unless a test says otherwise."""

import pytest

from ngram_wdr_hf.decoding import drafter


@pytest.fixture(autouse=True)
def products_of_large_models(monkeypatch):
    monkeypatch.setattr(drafter, "CACHE_BYTES", 0)
