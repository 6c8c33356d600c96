"""`--help` of the commands, which is read from a file. `python -m tests.project.test_help` writes the files again."""

import os
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from unittest.mock import patch

import pytest

from ngram_wdr_hf.command.main import COMMANDS, HELP, PACKAGE
from tests.support.processes import run_python

# The options of `serve` are those of Transformers, which describes them itself.
DESCRIBED = [name for name in COMMANDS if name != "serve"]
SCRIPTS = {"clm": "train_clm.py", "nmt": "train_nmt.py", "mlm": "train_mlm.py", "glue": "finetune_glue.py"}
WIDTH = 80


def help_of(command: str, option: str = "--help") -> str:
    """Return what the command's parser prints, without the file."""
    main = import_module(f"{PACKAGE}.{COMMANDS[command].module}").main
    with (
        patch.dict(os.environ, COLUMNS=str(WIDTH)),
        redirect_stdout(StringIO()) as printed,
        pytest.raises(SystemExit) as stopped,
    ):
        main([option])
    assert not stopped.value.code
    return printed.getvalue()


@pytest.mark.parametrize("command", DESCRIBED)
def test_the_file_is_what_the_parser_prints(command):
    text = (HELP / f"{command}.txt").read_text(encoding="utf-8")
    assert text == help_of(command), "run `python -m tests.project.test_help`"
    assert text.startswith(f"usage: ngram-wdr {command} ")
    if command != "report":
        assert "--output_dir" in text and "--learning_rate" in text and "--adam_beta1" not in text


@pytest.mark.parametrize(
    "command, refused",
    [
        ("heads", ["--model_name_or_path", "--train_mode", "--lora_rank", "--compare", "--do_train"]),
        ("glue", ["--do_train", "--eval_strategy", "--metric_for_best_model", "--push_to_hub"]),
    ],
)
def test_help_has_no_options_that_are_refused(command, refused):
    for option in ("--help", "--help_all"):
        described = {line.split()[0] for line in help_of(command, option).splitlines() if line.startswith("  --")}
        assert "--output_dir" in described and described.isdisjoint(refused)


def test_every_file_is_of_a_command():
    assert sorted(path.stem for path in HELP.iterdir()) == sorted(DESCRIBED)


@pytest.mark.parametrize("command", ["clm", "heads"])
def test_help_on_all_options(command):
    assert "--adam_beta1" in help_of(command, "--help_all")


@pytest.mark.parametrize("command", DESCRIBED)
def test_help_needs_no_import(command):
    """Help takes a moment, because nothing is imported: here, nothing is installed."""
    text = (HELP / f"{command}.txt").read_text(encoding="utf-8")
    assert run_python("-S", "-m", PACKAGE, command, "--help") == text
    if command in SCRIPTS:
        assert run_python("-S", SCRIPTS[command], "-h") == text


if __name__ == "__main__":
    for name in DESCRIBED:
        (HELP / f"{name}.txt").write_text(help_of(name), encoding="utf-8")
