"""Options of a script: from the command line, from a YAML file, and by preset."""

import json
from argparse import ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Collection, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser

from ..data.errors import InputError
from .presets import DEFAULT_PRESET, HEADS_LEARNING_RATE

SETTINGS = "run.yaml"
USAGE = "%(prog)s [FILE.yaml] [--option value ...]"


class HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """A formatter that shows defaults and keeps the line breaks of the description."""


class OptionParser(HfArgumentParser):
    """A parser that raises an `InputError`."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].upper()}{message[1:]}. See `--help`.")


def parse(
    classes: tuple[type, type, type], arguments: Sequence[str], prog: str, description: str, defaults: dict[str, Any]
) -> tuple[Any, ...]:
    """
    Parse `[FILE.yaml] [--option value ...]` into the dataclasses of a script for data, model (with its `presets`) and
    training. The command line takes precedence over the file, the file over `defaults` of the command, and these over
    the preset. An evaluation (`--do_train false`) has the data options of the evaluated run as its file, without those
    of the text if it has another text.
    """
    options = {"prog": prog, "usage": USAGE, "description": description, "formatter_class": HelpFormatter}
    parser = OptionParser(classes, allow_abbrev=False, **options)
    # For `--help`.
    parser.set_defaults(**defaults)
    words, nulls = list(arguments), {}
    if words and words[0].endswith((".yaml", ".yml")):
        file_words, nulls = _read_yaml(Path(words[0]))
        words = [*file_words, *words[1:]]
    chosen, unknown = parser.parse_known_args(words)
    if unknown:
        known = [field.name for group in classes for field in fields(group)]
        nearest = get_close_matches(unknown[0].partition("=")[0].lstrip("-"), known, n=1)
        advice = f"Did you mean `--{nearest[0]}`?" if nearest else "See `--help`."
        raise InputError(f"`{unknown[0]}` is no option. {advice}")
    if not chosen.do_train:
        words = [*_data_words(classes[0], chosen), *words]
        if Path(chosen.model_name_or_path).is_dir():
            defaults = {**defaults, "output_dir": chosen.model_name_or_path}
    if getattr(chosen, "train_mode", None) == "heads":
        parser.set_defaults(learning_rate=HEADS_LEARNING_RATE)
    presets = classes[1].presets
    if presets and (chosen.preset or chosen.model_name_or_path is None):
        preset = presets[chosen.preset or DEFAULT_PRESET]
        recipe = preset.recipe or classes[1].default_recipe
        parser.set_defaults(preset=DEFAULT_PRESET, recipe=recipe, **preset.arguments)
    parser.set_defaults(**{**defaults, **nulls})
    return parser.parse_args_into_dataclasses(words, look_for_args_file=False)


def _read_yaml(path: Path, names: Collection[str] | None = None) -> tuple[list[str], dict[str, None]]:
    """Return the options in a YAML file as words of a command line, and those that are null; only `names` if given."""
    # Strings, as on a command line: the option decides what they mean.
    settings = yaml.load(path.read_text(encoding="utf-8-sig"), yaml.BaseLoader) or {}
    if not isinstance(settings, dict):
        raise InputError(f"The settings file {path} must have one `option: value` per line.")
    words, nulls = [], {}
    for name, value in settings.items():
        if name == "num_processes" or (names is not None and name not in names):
            continue
        if value == "null":
            nulls[name] = None
        elif isinstance(value, list):
            words += [f"--{name}", *value]
        else:
            words.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return words, nulls


def folder_of_run(model: str) -> Path:
    """Return the folder of a model's run: that of the model or, for a checkpoint of Trainer's, the one above."""
    folder = Path(model)
    return folder.parent if not (folder / SETTINGS).exists() and (folder.parent / SETTINGS).exists() else folder


def _data_words(data_class: type, chosen: Any) -> list[str]:
    """Return the data options of the run that is to be evaluated, as words of a command line; none without a run."""
    if chosen.model_name_or_path is None:
        raise InputError("`--do_train false` needs a trained model: set `--model_name_or_path`.")
    path = folder_of_run(chosen.model_name_or_path) / SETTINGS
    if not path.exists():
        return []
    names = {field.name for field in fields(data_class)} - {"tokenizer", "vocab_size"}
    if any(getattr(chosen, name) for name in data_class.sources):
        return _read_yaml(path, names & data_class.model_options)[0]
    gone = yaml.safe_load(path.read_text(encoding="utf-8")).keys() - vars(chosen).keys() - {"num_processes"}
    if gone:
        raise InputError(f"{path} is of an older version, with `{min(gone)}`: give the data to evaluate on.")
    return _read_yaml(path, names)[0]
