"""Short runs of all scripts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import clm_runs, glue_runs, mlm_runs, nmt_runs
from tests.support.scripts import as_arguments, leave_out_plots

CONSTANT = as_arguments(lr_scheduler_type="constant", learning_rate=1e-2)


class Script:
    """A script with its options, the folder of its run in an output folder, and two lengths."""

    def __init__(self, run: Callable, options: list[str], lengths: tuple[str, str], subfolder: str = ""):
        self.run, self.options, self.lengths, self.subfolder = run, options, lengths, subfolder

    def __call__(self, folder: Path, length: str, *options: str) -> Path:
        self.run(*self.options, *length.split(), *options, "--output_dir", str(folder))
        return folder / self.subfolder


def clm_script(checkpoint: str, files: list[str]) -> Script:
    options = ["--model_name_or_path", checkpoint, *files, *clm_runs.QUICK, *CONSTANT, "--sample_tokens", "0"]
    # In so few steps, the perplexity of the ensemble may rise.
    options += ["--metric_for_best_model", "loss"]
    # The shorter run is also evaluated after its last step.
    return Script(clm_runs.run, options, ("--max_steps 3", "--max_steps 6"))


@pytest.fixture
def clm(checkpoint, files) -> Script:
    return clm_script(checkpoint, files)


@pytest.fixture(scope="session")
def undisturbed(checkpoint, files, tmp_path_factory) -> Path:
    """The folder of a run of `clm` with four steps. Tests that change it work on a copy."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        leave_out_plots(monkeypatch)
        return clm_script(checkpoint, files)(tmp_path_factory.mktemp("undisturbed") / "run", "--max_steps 4")


@pytest.fixture
def nmt(marian, pair_files) -> Script:
    pairs = [*pair_files["train"], *pair_files["validation"]]
    options = ["--model_name_or_path", marian, *pairs, *nmt_runs.QUICK, *CONSTANT]
    options += as_arguments(lambda_grid=0, num_beams=1, lr_scheduler_type="inverse_sqrt", warmup_steps=2)
    return Script(nmt_runs.run, options, ("--max_steps 4", "--max_steps 6"))


@pytest.fixture
def mlm(files) -> Script:
    options = [*files, *mlm_runs.QUICK, *CONSTANT, *as_arguments(max_steps=-1, eval_strategy="epoch")]
    options += as_arguments(per_device_train_batch_size=64, num_examples=0)
    return Script(mlm_runs.run, options, ("--num_train_epochs 1", "--num_train_epochs 2"))


@pytest.fixture
def glue(tmp_path) -> Script:
    glue_runs.write_task(tmp_path, "sst2")
    glue_runs.tiny_checkpoint("gpt2", tmp_path / "model")
    options = ["--model_name_or_path", str(tmp_path / "model"), "--task", "sst2", "--data_dir", str(tmp_path)]
    options += [*glue_runs.QUICK, *CONSTANT, *as_arguments(logging_strategy="steps", logging_steps=1)]
    # Seven steps are an epoch.
    return Script(glue_runs.run, options, ("--max_steps 5", "--max_steps 9"), "sst2/seed-42")
