"""Nothing here may need the network: the Hub is out of bounds unless a test says otherwise."""

import atexit
import os
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="ngram_wdr_hf_tests_")
os.environ["TOKENIZERS_PARALLELISM"] = "false"

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
