"""Nothing here may need the network: the Hub is out of bounds unless a test says otherwise."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="ngram_wdr_hf_tests_")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Two processes that run tests side by side should not have two threads each on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from transformers.utils import logging

# Nothing is left behind, in the user's own cache or elsewhere.
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def transformers_log(caplog):
    """Transformers' own log, which does not reach the root logger by default."""
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> dict[str, str]:
    """A training, a validation and a test text."""
    from tests.support.clm_runs import write_text

    folder = tmp_path_factory.mktemp("texts")
    lines = {"train": 300, "validation": 40, "test": 30}
    return {name: str(write_text(folder / f"{name}.txt", count, i)) for i, (name, count) in enumerate(lines.items())}


@pytest.fixture(scope="session")
def files(texts) -> list[str]:
    """The same as arguments."""
    return [argument for split, path in texts.items() for argument in (f"--{split}_file", path)]


@pytest.fixture(scope="session")
def checkpoint(texts, tmp_path_factory) -> str:
    """A plain model with a tokenizer for the texts, and with dropout, whose random numbers a resumed run must find."""
    from ngram_wdr_hf.data.tokenizer import train_word_tokenizer

    from tests.support.tiny import plain_model

    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_word_tokenizer([Path(texts["train"]).read_text(encoding="utf-8")])
    tokenizer.save_pretrained(folder)
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    plain_model(vocab_size=len(tokenizer), n_positions=16, resid_pdrop=0.1, **ends).save_pretrained(folder)
    return str(folder)
