"""Parsing of a script's options: command line, YAML file, preset."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...data.errors import InputError
from .arguments import HEADS_LEARNING_RATE, ModelArguments, RunArguments
from .checks import check_choice
from .failures import reason_outside
from .option_parser import OptionParser
from .presets import DEFAULT_PRESET
from .settings_file import read_settings

EPILOG = """\
Trainer's options are options of this command as well, such as --learning_rate,
--lr_scheduler_type, --warmup_steps, --weight_decay, --num_train_epochs,
--max_steps, --eval_steps, --per_device_train_batch_size, --seed, --bf16 and
--report_to. --help_all describes all of them."""


def run_script(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> int:
    """
    Call `main` with `arguments`, by default those of the command line, and return the exit code: 0, or 2 after
    printing one line about bad input or a failure outside the program, or 130 after one line about an interruption by
    Ctrl-C or SIGTERM. An error of the program itself is raised.
    """
    # Several processes may wait for each other, where only the default handler reaches them.
    is_alone = "RANK" not in os.environ
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_alone else None
    try:
        main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt as stop:
        if os.environ.get("RANK", "0") == "0":
            # The line of the progress bar ends here.
            print(f"\n{str(stop) or 'Stopped. Repeat the command to go on.'}", file=sys.stderr)
        return 130
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else reason_outside(error)
        if reason is None:
            raise
        print(f"error: {' '.join(reason.split())}", file=sys.stderr)
        return 2
    finally:
        if is_alone:
            signal.signal(signal.SIGTERM, before)
    return 0


def parse_arguments(
    classes: tuple[type, type, type, type],
    arguments: Sequence[str],
    description: str,
    prog: str,
    hidden: Sequence[str] = (),
) -> RunArguments:
    """
    Parse `[FILE.yaml] [--option value ...]` into the classes for data, model, report and training. The command line
    takes precedence over the file, the file over the preset, and the preset over the train mode. Raise an
    `InputError` for unknown options and bad values. `prog`, the command, and `description` head the text of `--help`,
    which does not show the options in `hidden`.
    """
    usage = "%(prog)s [FILE.yaml] [--option value ...]"
    parser = OptionParser(classes, hidden, prog=prog, description=description, usage=usage, epilog=EPILOG)
    arguments, values = list(arguments), {}
    if arguments and _is_yaml(arguments[0]):
        words, values = read_settings(arguments[0], parser)
        arguments = [*words, *arguments[1:]]
    parser.check(arguments)
    parser.set_defaults(**{**_default_arguments(classes[1], arguments), **values})
    try:
        return RunArguments(*parser.parse_args_into_dataclasses(arguments, look_for_args_file=False))
    except InputError:
        raise
    except (ValueError, TypeError, RuntimeError, ImportError) as error:  # Trainer's checks of its own options
        raise InputError(f"The options do not work: {' '.join(str(error).split())}") from error


def _default_arguments(model_class: type[ModelArguments], arguments: Sequence[str]) -> dict[str, Any]:
    """
    Return the defaults for the other options that follow from train mode and preset. Without `--preset`, those of the
    default preset; with a checkpoint and no preset, those of the train mode only.
    """
    if not model_class.presets:
        return {}
    chosen = OptionParser([model_class], add_help=False).parse_known_args(list(arguments))[0]
    check_choice("preset", chosen.preset, model_class.presets)
    name = chosen.preset or (DEFAULT_PRESET if chosen.model_name_or_path is None else None)
    by_mode = {"learning_rate": HEADS_LEARNING_RATE} if chosen.train_mode == "heads" else {}
    defaults = {**by_mode, **(model_class.presets[name].arguments if name else {})}
    # As texts, which argparse converts to the option's type, like those of a settings file.
    return {name: str(value) for name, value in defaults.items()}


def _is_yaml(argument: str) -> bool:
    return Path(argument).suffix in (".yaml", ".yml")
