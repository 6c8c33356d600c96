"""Nothing here may need the network: the Hub is out of bounds unless a test says otherwise."""

import atexit
import gc
import os
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="ngram_wdr_hf_tests_")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Two processes that run tests side by side should not have two threads each on two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without the processor's matrix extensions: some virtual machines announce them and then trap.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

import pytest
import torch
from transformers.utils import logging

pytest.register_assert_rewrite("tests.support")

# Nothing is left behind, in the user's own cache or elsewhere.
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)


def pytest_collection_finish():
    """Trainer collects garbage in every run. What the imports have made stays, and need not be searched each time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    from tests.support.versions import expected_failure

    for item in items:
        if reason := expected_failure(item.nodeid):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def transformers_log(caplog):
    """Transformers' own log, which does not reach the root logger by default. Trainer may have changed its level."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_warning()
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()
    logging.set_verbosity(verbosity)


@pytest.fixture(params=["wdr", "simple"])
def target(request) -> str:
    """Both kinds of heads."""
    return request.param


@pytest.fixture(params=[0.0, 0.4])
def ensemble_lambda(request) -> float:
    """Without the ensemble, and with it."""
    return request.param


# Texts, pairs and trained models for the scripts. Their module takes long to import, and many tests need none of them.


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> dict[str, str]:
    """A training, a validation and a test text."""
    from tests.support.scripts import write_text

    folder, lines = tmp_path_factory.mktemp("texts"), {"train": 300, "validation": 40, "test": 30}
    return {split: str(write_text(folder / f"{split}.txt", lines[split], i)) for i, split in enumerate(lines)}


@pytest.fixture(scope="session")
def files(texts) -> list[str]:
    """The same as arguments."""
    return [argument for split, path in texts.items() for argument in (f"--{split}_file", path)]


@pytest.fixture(scope="session")
def checkpoint(texts, tmp_path_factory) -> str:
    """A plain model with a tokenizer for the texts."""
    from tests.support.scripts import save_plain_model

    return save_plain_model(texts, tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def pair_files(tmp_path_factory) -> dict[str, list[str]]:
    """Sentence pairs: the arguments for the files of each split."""
    from tests.support.scripts import NUM_PAIRS, toy_pairs, write_sides

    folder = tmp_path_factory.mktemp("pairs")
    return {split: write_sides(folder, split, toy_pairs(NUM_PAIRS[split], i)) for i, split in enumerate(NUM_PAIRS)}


@pytest.fixture(scope="session")
def pairs(pair_files) -> list[str]:
    """All of them."""
    return [argument for arguments in pair_files.values() for argument in arguments]


@pytest.fixture(scope="session")
def marian(tmp_path_factory) -> str:
    """A plain Marian with a tokenizer for the pairs."""
    from tests.support.scripts import save_plain_seq2seq

    return save_plain_seq2seq("marian", tmp_path_factory.mktemp("marian"))
