"""`--help` of the scripts, which is read from a file. `python -m tests.project.test_help` writes the files again."""

import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.processes import ROOT, run_python

SCRIPTS = ("train_clm", "train_nmt", "train_mlm", "finetune_glue")
WIDTH = 80


def file_of(script: str) -> Path:
    return ROOT / "docs" / "options" / f"{script}.txt"


def help_of(script: str, option: str = "--help") -> str:
    """Return what the script's parser prints, without the file."""
    namespace = {"__name__": script, "__file__": str(ROOT / f"{script}.py")}
    exec(compile((ROOT / f"{script}.py").read_text(encoding="utf-8"), script, "exec"), namespace)
    with (
        patch.object(sys, "argv", [f"{script}.py"]),
        patch.dict(os.environ, COLUMNS=str(WIDTH)),
        redirect_stdout(StringIO()) as printed,
        pytest.raises(SystemExit) as stopped,
    ):
        namespace["main"]([option])
    assert not stopped.value.code
    return printed.getvalue()


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_file_is_what_the_parser_prints(script):
    text = file_of(script).read_text(encoding="utf-8")
    assert text == help_of(script), "run `python -m tests.project.test_help`"
    assert "--output_dir" in text and "--learning_rate" in text and "--adam_beta1" not in text


def test_help_on_all_options():
    assert "--adam_beta1" in help_of("train_clm", "--help_all")


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_needs_no_import(script):
    """Help takes a moment, because nothing is imported: here, nothing is installed."""
    assert run_python("-I", "-S", f"{script}.py", "--help") == file_of(script).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name in SCRIPTS:
        file_of(name).write_text(help_of(name), encoding="utf-8")
