"""The command `ngram-wdr`, and the one-line errors of all scripts."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from .data.errors import InputError
from .version import __version__

# The function of each command and what it does. Modules are imported when a command needs them.
COMMANDS = {
    "clm": ("training.clm:main", "train and evaluate a causal language model with heads"),
    "heads": ("training.heads:main", "add heads to a pretrained causal model and train only them"),
    "nmt": ("training.nmt:main", "train and evaluate a translation model with heads"),
    "mlm": ("training.mlm:main", "train and evaluate a masked language model with heads"),
    "glue": ("training.glue:main", "fine-tune a checkpoint on tasks of GLUE"),
    "report": ("analysis.__main__:main", "analyze a trained run and write an HTML report"),
    "serve": ("cli:serve", "serve a checkpoint with an OpenAI-style API"),
}
OVERVIEW = f"""\
commands:
{chr(10).join(f"  {name:<8}{summary}" for name, (_, summary) in COMMANDS.items())}

`ngram-wdr COMMAND --help` describes a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ngram-wdr`, by default with the arguments of the process, and return its exit code."""
    return run_script(_run_command, arguments)


def run_script(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> int:
    """
    Call a script's `main` with `arguments`, by default those of the process, and return the exit code: 1 after an
    error, of which one line is printed, or the traceback with `--debug`; 130 after Ctrl-C or SIGTERM.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    is_debug = "--debug" in arguments
    # A launcher stops its processes by SIGTERM: they may wait for each other, where only the default handler works.
    is_alone = "RANK" not in os.environ
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_alone else None
    try:
        main([argument for argument in arguments if argument != "--debug"])
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            # The line of the progress bar ends here.
            print("\nStopped. Repeat the command to resume.", file=sys.stderr)
        return 130
    except Exception as error:
        if is_debug:
            raise
        print(f"error: {_in_one_line(error)}", file=sys.stderr)
        return 1
    finally:
        if is_alone:
            signal.signal(signal.SIGTERM, before)
    return 0


def _in_one_line(error: Exception) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, InputError):
        return message
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith(__package__):
        return f'{message}. Install what is missing: `pip install "ngram-wdr-hf[train]"`.'
    return f"{type(error).__name__}: {message} (`--debug` shows the traceback)"


def _run_command(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="ngram-wdr",
        description="Language models that predict several tokens ahead, with N-gram and WDR heads.",
        epilog=OVERVIEW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ngram-wdr {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of the commands below")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its options")
    parsed = parser.parse_args(arguments or ["--help"])
    module, _, function = COMMANDS[parsed.command][0].partition(":")
    getattr(import_module(f"{__package__}.{module}"), function)(parsed.options)


def serve(arguments: Sequence[str]) -> None:
    """Run `transformers serve` with our classes, which importing this package has registered."""
    from transformers import AutoConfig
    from transformers.cli.transformers import app

    from .backbones.registry import is_masked

    server = app.commands["serve"]
    name = server.make_context("ngram-wdr serve", [*arguments], resilient_parsing=True).params["force_model"]
    if name is not None:
        folder, _, revision = name.partition("@")
        config = AutoConfig.from_pretrained(folder, revision=revision or "main")
        if is_masked(config):
            raise InputError(f"{name} predicts masked tokens and writes no text: serve a model of `ngram-wdr clm`.")
        if config.is_encoder_decoder:
            raise InputError(
                f"{name} is an encoder-decoder model, and the server would cut off the beginning of its answers: call "
                "`generate`, or translate files with `ngram-wdr nmt --translate`."
            )
    server.main([*arguments], prog_name="ngram-wdr serve")
