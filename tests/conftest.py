"""Nothing here may need the network: the Hub is out of bounds unless a test says otherwise."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import torch
from transformers.utils import logging


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def transformers_log(caplog):
    """Transformers' own log, which does not reach the root logger by default."""
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()
