"""Runs that are stopped, fill the disk, or find damaged files; and how they go on."""

import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from transformers import Trainer

from ngram_wdr_hf.analysis.trained_run import find_runs
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.common.command_line import run_script
from ngram_wdr_hf.training.common.run import Run
from tests.support import clm_runs, mlm_runs
from tests.support.clm_runs import write_text
from tests.support.errors import assert_names, raises_naming
from tests.support.scripts import as_arguments, cut_in_half, metrics_of, weights_of

train_step = Trainer.training_step


@pytest.fixture
def in_step(monkeypatch):
    """A function that calls another one in the given step, and only once."""

    def install(step: int, call) -> None:
        def training_step(self, *args, **kwargs):
            if self.state.global_step == step - 1:
                monkeypatch.setattr(Trainer, "training_step", train_step)
                call()
            return train_step(self, *args, **kwargs)

        monkeypatch.setattr(Trainer, "training_step", training_step)

    return install


def stop() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def interruptible():
    """Python's own reaction to Ctrl-C, which a shell turns off for what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run(clm, in_step, undisturbed, interruptible, tmp_path, capsys, number):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    in_step(4, lambda: os.kill(os.getpid(), number))
    code = run_script(lambda arguments: clm(tmp_path / "run", *arguments), ["--max_steps 4"])
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert code == 130
    assert_names(line, "step 3", str(tmp_path / "run" / "checkpoint-2"))
    assert handlers == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    clm(tmp_path / "run", "--max_steps 4")
    assert weights_of(tmp_path / "run") == weights_of(undisturbed)


@pytest.mark.parametrize("runs", [clm_runs, mlm_runs])
def test_streamed_run_stopped_in_a_later_pass(runs, in_step, files, tmp_path):
    """The text has four or five batches."""
    text = write_text(tmp_path / "short.txt", lines=30, seed=0)
    options = [*runs.QUICK, *as_arguments(streaming="true", shuffle_buffer=10, max_steps=8)]
    options = ["--train_file", str(text), *files[files.index("--validation_file") :], *options, "--output_dir"]
    runs.run(*options, str(tmp_path / "whole"))
    in_step(8, stop)
    with pytest.raises(KeyboardInterrupt):
        runs.run(*options, str(tmp_path / "parts"))
    runs.run(*options, str(tmp_path / "parts"))
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")


def test_stopped_before_the_training(capsys):
    def main(arguments):
        raise KeyboardInterrupt

    assert run_script(main, []) == 130
    assert len(capsys.readouterr().err.strip().split("\n")) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_full_disk_while_a_checkpoint_is_saved(clm, in_step, undisturbed, tmp_path, name):
    """No file may become as large as this one: what is larger is cut off, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = (undisturbed / "checkpoint-4" / name).stat().st_size - 100
    folder = tmp_path / "run"
    in_step(3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1])))
    try:
        with raises_naming(InputError, f"`--output_dir {folder}`", str(folder / "checkpoint-2")):
            clm(folder, "--max_steps 4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # What was begun is removed.
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    clm(folder, "--max_steps 4")
    assert weights_of(folder) == weights_of(undisturbed)


def interrupt_last_save(folder: Path) -> None:
    (folder / "trainer_state.json").unlink()
    for name in ("config.json", "model.safetensors"):
        cut_in_half(folder / name)


@pytest.mark.plots
def test_longer_run_stopped_before_its_results(clm, tmp_path, monkeypatch):
    """No results of the shorter run stay with the model of the longer one."""
    folder = clm(tmp_path / "run", "--max_steps 2")
    result_files = {path.name for path in folder.iterdir() if path.suffix in (".md", ".png")}
    assert {"README.md", "lambda_sweep.png", "training.png"} == result_files
    # Of the shorter run's model.
    (folder / "evaluation.md").write_text("| model |")
    result_files.add("evaluation.md")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "score", lambda *args: stop())
        clm(folder, "--max_steps 3")
    assert not any((folder / name).exists() for name in ("metrics.json", *result_files))
    with raises_naming(InputError, str(folder), "not finished"):
        find_runs(folder)
    clm(folder, "--max_steps 3")
    assert metrics_of(folder)["settings"]["max_steps"] == 3 and find_runs(folder) == ([folder], [])


DAMAGES = {
    "truncated weights": lambda folder: cut_in_half(folder / "model.safetensors"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "null for a configuration": lambda folder: (folder / "config.json").write_text("null"),
    "null for a state": lambda folder: (folder / "trainer_state.json").write_text("null"),
    "an empty state": lambda folder: (folder / "trainer_state.json").write_text("{}"),
    "another state": lambda folder: (folder / "trainer_state.json").write_text('{"steps": 4}'),
    "a truncated model without a state": interrupt_last_save,
    "a binary state": lambda folder: (folder / "trainer_state.json").write_bytes(b"\xff\x00"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_a_finished_run(clm, undisturbed, tmp_path, capsys, monkeypatch, damage):
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    DAMAGES[damage](folder)

    def no_step(*args, **kwargs):
        raise AssertionError("The last checkpoint has all steps.")

    monkeypatch.setattr(Trainer, "training_step", no_step)
    clm(folder, "--max_steps 4")
    assert weights_of(folder) == weights_of(undisturbed)
    if "state" not in damage:
        assert f"{folder} " in capsys.readouterr().out
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path)
    DAMAGES[damage](folder)
    if "state" not in damage:
        with raises_naming(InputError, f"`--output_dir {folder}`"):
            clm(folder, "--max_steps 4")


@pytest.mark.parametrize("contents", [b"", b"null", b"[]", b"\xff\x00", b"a: ["])
def test_damaged_settings(clm, undisturbed, tmp_path, contents):
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    (folder / "run.yaml").write_bytes(contents)
    with raises_naming(InputError, str(folder / "run.yaml")):
        clm(folder, "--max_steps 4")


def test_checkpoint_of_another_model(clm, finished_clm, tmp_path):
    checkpoint = str(finished_clm.folder / "checkpoint-4")
    with raises_naming(InputError, checkpoint):
        clm(tmp_path / "run", "--max_steps 6", "--resume_from_checkpoint", checkpoint)


def test_interruption_before_the_training(capsys):
    """An interruption without a message of its own says how to go on."""

    def interrupted(arguments):
        raise KeyboardInterrupt

    assert run_script(interrupted, []) == 130
    assert capsys.readouterr().err == "\nStopped. Repeat the command to go on.\n"
