"""What the tests of the scripts share: a short command of each script, finished runs, and runs without plots."""

from collections.abc import Callable
from functools import cache

import pytest
from transformers import Trainer

from ngram_wdr_hf.training import report
from tests.support.glue_files import tiny_checkpoint, write_tasks
from tests.support.scripts import LONGER, QUICK, FinishedRun, finish


@pytest.fixture(autouse=True)
def without_plots(request, monkeypatch):
    """They take longer than a short training, and few tests are about them."""
    if request.node.get_closest_marker("plots") is None:
        for name in ("save_lambda_plot", "save_training_plot"):
            monkeypatch.setattr(report, name, lambda results, path: None)


@pytest.fixture
def without_training(monkeypatch):
    monkeypatch.setattr(Trainer, "training_step", lambda *args, **kwargs: pytest.fail("trained"))


@pytest.fixture(scope="session")
def glue(tmp_path_factory) -> str:
    """The files of GLUE's tasks."""
    return write_tasks(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory) -> str:
    """A model with heads to fine-tune."""
    folder = tmp_path_factory.mktemp("gpt2")
    tiny_checkpoint("gpt2", folder)
    return str(folder)


@pytest.fixture(scope="session")
def commands(files, marian, pairs, gpt2, glue) -> dict[str, list[str]]:
    """A short command of each script, without its folder."""
    return {
        "clm": [*files, *QUICK["clm"]],
        "mlm": [*files, *QUICK["mlm"]],
        "nmt": ["--model_name_or_path", marian, *pairs, *QUICK["nmt"]],
        "glue": ["--model_name_or_path", gpt2, "--task", "sst2", "--data_dir", glue, *QUICK["glue"]],
    }


@pytest.fixture(scope="session")
def finished(commands, tmp_path_factory) -> Callable[[str], FinishedRun]:
    """The complete run of a script for language models, made once. Tests that change its folder work on a copy."""
    folder = tmp_path_factory.mktemp("finished")
    return cache(lambda task: finish(task, folder / task, *commands[task], *LONGER[task]))
