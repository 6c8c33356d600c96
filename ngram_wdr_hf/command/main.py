"""The entry point of `ngram-wdr`. It imports nothing heavy before it has to, so that help comes at once."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from ..version import __version__

PACKAGE = __name__.partition(".")[0]
# What the options' parser of a command prints, at a width of 80: `python -m tests.project.test_help` writes the files.
HELP = Path(__file__).parent / "help"
HELP_OPTIONS = {"-h", "--help"}


class Command(NamedTuple):
    """A command: its module, with a function `main(arguments)`, and a line about it."""

    module: str
    summary: str


COMMANDS = {
    "clm": Command("command.clm", "train and evaluate a causal language model with heads"),
    "nmt": Command("command.nmt", "train and evaluate a translation model with heads"),
    "mlm": Command("command.mlm", "train and evaluate a masked language model with heads"),
    "glue": Command("command.glue", "fine-tune a checkpoint on tasks of GLUE"),
    "heads": Command("command.heads", "add heads to a pretrained causal model and train only them"),
    "report": Command("analysis.__main__", "analyze a trained run and write an HTML report"),
    "serve": Command("serve.__main__", "serve a checkpoint with an OpenAI-style API"),
}
OVERVIEW = f"""\
usage: ngram-wdr COMMAND [--option value ...]

Language models that predict several tokens ahead, with N-gram and WDR heads.

commands:
{chr(10).join(f"  {name:<8}{command.summary}" for name, command in COMMANDS.items())}

`ngram-wdr COMMAND --help` describes a command. `ngram-wdr --version` shows the version.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return its exit code, as [`run_script`] does."""
    name, *options = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in HELP_OPTIONS:
        print(OVERVIEW, end="")
        return 0
    if name == "--version":
        print(f"ngram-wdr {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"error: `{name}` is not a command: choose one of {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    help_file = HELP / f"{name}.txt"
    # Transformers itself describes the options of `serve`.
    if HELP_OPTIONS & {*options} and help_file.is_file():
        print(help_file.read_text(encoding="utf-8"), end="")
        return 0
    try:
        from ..training.common.command_line import run_script

        command = import_module(f"{PACKAGE}.{COMMANDS[name].module}")
    except ModuleNotFoundError as error:
        print(f'error: {error}. Install what training needs: `pip install "ngram-wdr-hf[train]"`.', file=sys.stderr)
        return 2
    return run_script(command.main, options)
