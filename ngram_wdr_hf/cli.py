"""The command `ngram-wdr`, and the one-line errors of all scripts."""

import argparse
import os
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
    "export": ("engines.export:main", "write the heads of a checkpoint for an inference engine (vLLM)"),
    "serve": ("cli:serve", "serve a checkpoint with an OpenAI-style API"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ngram-wdr`, by default with the arguments of the process, and return its exit code."""
    return run_script(_run_command, arguments)


def run_script(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> int:
    """Call a script's `main`. Return 1 after an error, printed in one line, and 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        main([argument for argument in arguments if argument != "--debug"])
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print("\nStopped. Repeat the command to resume.", file=sys.stderr)
        return 130
    except Exception as error:
        if "--debug" in arguments:
            raise
        name = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        advice = "" if isinstance(error, InputError) else " (`--debug` shows the traceback)"
        if isinstance(error, ModuleNotFoundError):
            advice = ': `pip install "ngram-wdr-hf[train]"` installs what scripts need'
        print(f"error: {name}{' '.join(str(error).split())}{advice}", file=sys.stderr)
        return 1
    return 0


def _run_command(arguments: Sequence[str]) -> None:
    overview = "\n".join(f"  {name:<8}{summary}" for name, (_, summary) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="ngram-wdr",
        epilog=f"commands:\n{overview}\n\n`ngram-wdr COMMAND --help` describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ngram-wdr {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="one of the commands below")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its options")
    parsed = parser.parse_args(arguments or ["--help"])
    module, function = COMMANDS[parsed.command][0].split(":")
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
        if is_masked(config) or config.is_encoder_decoder:
            raise InputError(f"{name}: the server needs a causal model, not a masked or encoder-decoder one.")
    server.main([*arguments], prog_name="ngram-wdr serve")
