"""Options from a YAML file, turned into a command line."""

import json
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from ...data.errors import InputError
from .option_parser import OptionParser
from .run_folder import MODEL_WEIGHTS


class _TextLoader(yaml.SafeLoader):
    """A loader of strings and `None`: the option decides what a string means, not YAML (`no` is no boolean)."""


_TextLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_settings(path: str, parser: OptionParser) -> tuple[list[str], dict[str, Any]]:
    """
    Return the options in a YAML file as a command line, and the values that a command line cannot express: `None`,
    and a list for an option that takes one word there.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        settings, typed = yaml.load(text, _TextLoader), yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"Settings file {path} cannot be read: {' '.join(str(error).split())}. Correct the file or its path."
        ) from error
    if settings is None:
        return [], {}
    if not isinstance(settings, dict):
        raise InputError(f"Settings file {path} must be a YAML mapping: write one `option: value` per line.")
    words, values = [], {}
    try:
        for name, value in settings.items():
            if name == MODEL_WEIGHTS:
                continue
            if name not in parser.option_names:
                raise InputError(f"`{name}` is unknown. {parser.suggestion(str(name))}")
            _check_kind(name, value, parser)
            if isinstance(value, dict):
                words.append(f"--{name}={json.dumps(typed[name])}")
            elif isinstance(value, list) and name in parser.list_names:
                words += [f"--{name}", *value]
            elif isinstance(value, str):
                words.append(f"--{name}={value}")
            else:
                values[name] = value
        parser.check(words)
    except InputError as error:
        raise InputError(f"Settings file {path}: {error}") from error
    return words, values


def _check_kind(name: str, value: Any, parser: OptionParser) -> None:
    """Check that an option may be what it is in the file: a single value, nothing, a list or a mapping."""
    hint = next(hints[name] for hints in map(get_type_hints, parser.dataclass_types) if name in hints)
    kinds = {get_origin(kind) or kind for kind in (hint, *get_args(hint))}
    if value is None and type(None) not in kinds:
        raise InputError(f"`{name}` has no value. Give it one, or remove it.")
    if isinstance(value, dict) and dict not in kinds:
        raise InputError(f"`{name}` must not be a mapping. Give it a single value.")
    if isinstance(value, list) and (list not in kinds or not all(isinstance(item, str) for item in value)):
        raise InputError(f"`{name}` must be a single value{' or a list of them' * (list in kinds)}, got {value}.")
