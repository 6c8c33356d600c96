"""Parsing of a script's options: command line, YAML file, preset."""

import sys
from argparse import Action, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from ...data.errors import InputError
from .arguments import ModelArguments, RunArguments, check_choice
from .presets import DEFAULT_PRESET


def run_script(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> int:
    """
    Call `main` with `arguments`, by default those of the command line, and return the exit code: 0, or 2 for bad
    input, after printing its one-line message. Other errors are raised.
    """
    try:
        main(sys.argv[1:] if arguments is None else arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parse_arguments(
    classes: tuple[type, type, type, type], arguments: Sequence[str], description: str
) -> RunArguments:
    """
    Parse `[FILE.yaml] [--option value ...]` into the classes for data, model, report and training. The command line
    takes precedence over the file, and the file over the preset. Raise an `InputError` for bad values. `description`
    heads the text of `--help`.
    """
    parser = HfArgumentParser(
        classes,
        description=description,
        usage="%(prog)s [FILE.yaml] [--option value ...]",
        formatter_class=_HelpFormatter,
        # `_preset_arguments` would not recognize an abbreviated `--preset`.
        allow_abbrev=False,
    )
    arguments = list(arguments)
    from_file = _read_yaml(arguments.pop(0), parser) if arguments and _is_yaml(arguments[0]) else {}
    parser.set_defaults(**{**_preset_arguments(classes[1], arguments, from_file), **from_file})
    try:
        return RunArguments(*parser.parse_args_into_dataclasses(arguments, look_for_args_file=False))
    except (ValueError, TypeError) as error:
        raise InputError(" ".join(str(error).split())) from error


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Formatter of `--help`: it keeps the description's line breaks and shows all defaults except `None`."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _preset_arguments(
    model_class: type[ModelArguments], arguments: Sequence[str], from_file: dict[str, Any]
) -> dict[str, Any]:
    """
    Return the preset's defaults for the other options. The preset is that of the command line, else of the settings
    file, else the default one; with a checkpoint and no preset, return no defaults.
    """
    if not model_class.presets:
        return {}
    preset_parser = HfArgumentParser(model_class, add_help=False, allow_abbrev=False)
    preset_parser.set_defaults(
        **{name: from_file[name] for name in ("preset", "model_name_or_path") if name in from_file}
    )
    chosen = preset_parser.parse_known_args(list(arguments))[0]
    check_choice("preset", chosen.preset, model_class.presets)
    name = chosen.preset or (DEFAULT_PRESET if chosen.model_name_or_path is None else None)
    return model_class.presets[name].arguments if name else {}


def _is_yaml(argument: str) -> bool:
    return Path(argument).suffix in (".yaml", ".yml")


def _read_yaml(path: str, parser: HfArgumentParser) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InputError(
            f"Settings file {path} cannot be read ({' '.join(str(error).split())}): correct the file or its path."
        ) from error
    if not isinstance(settings, dict):
        raise InputError(f"Settings file {path} must be a YAML mapping: write one `option: value` per line.")
    known = {action.dest for action in parser._actions}
    unknown = [str(name) for name in settings if name not in known]
    if unknown:
        raise InputError(
            f"Settings file {path} has unknown options: {', '.join(unknown)}. Choose from those that `--help` lists."
        )
    lists = {action.dest for action in parser._actions if action.nargs in ("+", "*")}
    return {
        name: [value] if name in lists and value is not None and not isinstance(value, list) else value
        for name, value in settings.items()
    }
