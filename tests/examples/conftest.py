"""The page of `examples/space`, its modules imported as when it is run, and a checkpoint for it."""

import copy
import sys

import pytest

from tests.support.processes import ROOT
from tests.support.tokenizers import letter_tokenizer
from tests.support.trained import trained_model

# Before `app` and `generation` can be imported.
sys.path.insert(0, str(ROOT / "examples" / "space"))


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    """Speed is not tested."""
    monkeypatch.setattr("generation.MIN_SECONDS", 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A trained checkpoint with fitted weights."""
    from tests.examples.values import WEIGHTS

    folder = tmp_path_factory.mktemp("space") / "clm"
    # Other tests use this model, too.
    model = copy.deepcopy(trained_model(4, "wdr"))
    model.config.ensemble_weights = list(WEIGHTS)
    model.save_pretrained(folder)
    letter_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def checkpoint(folder):
    from generation import load

    return load(folder)
