"""Options and folders that the tests of all training scripts share."""

import io
import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

# A few steps, evaluated twice.
QUICK_STEPS = {
    "max_steps": 4,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "logging_steps": 1,
    "warmup_steps": 0,
    "disable_tqdm": "true",
}
QUICK_BLOCKS = {**QUICK_STEPS, "block_size": 16, "per_device_train_batch_size": 4}


def as_arguments(**options) -> list[str]:
    return [argument for name, value in options.items() for argument in (f"--{name}", *str(value).split(" "))]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def metrics_of(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def card_code(folder: Path) -> str:
    """Return the example code in a model card."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", card, flags=re.DOTALL | re.MULTILINE)
    return code


def cut_off(complete: Path, broken: Path, last_step: int | None = None) -> None:
    """Copy the folder of a run, as it was before the result was saved, or soon after a step."""
    shutil.copytree(complete, broken)
    for name in ("trainer_state.json", "model.safetensors", "config.json", "metrics.json", "README.md"):
        (broken / name).unlink()
    for path in broken.glob("checkpoint-*"):
        if last_step is not None and int(path.name.split("-")[1]) > last_step:
            shutil.rmtree(path)


def leave_out_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longer than a short training: plots, and the collection of garbage before it."""
    for name in ("save_lambda_plot", "save_training_plot"):
        monkeypatch.setattr(f"ngram_wdr_hf.training.report.{name}", lambda results, path: None)
    monkeypatch.setattr("accelerate.utils.memory.gc", SimpleNamespace(collect=lambda: None))


class FinishedRun(NamedTuple):
    """A finished run: its command without the folder, its folder, its result and its output."""

    command: list[str]
    folder: Path
    result: Any
    printed: str


def finish(run: Callable[..., Any], folder: Path, *command: str) -> FinishedRun:
    """Run a script's function in `folder`."""
    with redirect_stdout(io.StringIO()) as printed:
        result = run(*command, "--output_dir", str(folder))
    return FinishedRun([*command], folder, result, printed.getvalue())
