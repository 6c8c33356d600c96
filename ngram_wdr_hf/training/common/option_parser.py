"""Parser of command lines whose errors are one sentence."""

from argparse import SUPPRESS, Action, ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Sequence
from difflib import get_close_matches
from inspect import get_annotations
from typing import Any, NoReturn

from transformers import HfArgumentParser

from ...data.errors import InputError

PACKAGE = __name__.partition(".")[0]
# An empty prefix differs from none: it replaces that of a trained run.
MAY_BE_EMPTY = ("source_prefix",)


class HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Formatter that keeps the description's line breaks and shows all defaults except `None`."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)

    def _format_action_invocation(self, action: Action) -> str:
        # Not every spelling of the option, each with the option's name again for its value.
        values = {None: " VALUE", "+": " VALUE ...", "?": " [VALUE]"}
        if not action.option_strings or action.nargs not in values:
            return super()._format_action_invocation(action)
        return action.option_strings[0] + values[action.nargs]


class _HelpOnAll(Action):
    """Show the help on all options and exit."""

    def __call__(self, parser: "OptionParser", *args) -> NoReturn:
        print(parser.format_help_on_all(), end="")
        parser.exit()


class OptionParser(HfArgumentParser):
    r"""
    A parser that raises an `InputError` instead of exiting, and suggests the nearest name for an unknown option.

    Args:
        classes (`Sequence[type]`, *optional*): Dataclasses with one field per option.
        hidden (`Sequence[str]`, *optional*): Names of options that help does not show.
        kwargs: Arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, classes: Sequence[type] = (), hidden: Sequence[str] = (), **kwargs):
        # An abbreviation would not be recognized by every parser of a script.
        super().__init__(classes, **{"formatter_class": HelpFormatter, "allow_abbrev": False, **kwargs})
        for action in self._actions:
            if action.dest in hidden:
                action.help = SUPPRESS
        if classes and self.add_help:
            self.add_argument(
                "--help_all",
                action=_HelpOnAll,
                nargs=0,
                default=SUPPRESS,
                help="Show all options and exit, those of Trainer included.",
            )

    @property
    def option_names(self) -> list[str]:
        """The names of all options, without the dashes."""
        return [action.option_strings[0].removeprefix("--") for action in self._actions if action.option_strings]

    @property
    def list_names(self) -> list[str]:
        """The names of the options that take several values."""
        return [action.dest for action in self._actions if action.nargs == "+"]

    def format_help(self) -> str:
        """
        Return the help on the options of this package. `format_help_on_all` also has those of Trainer, and `--no_...`
        for options that are on.
        """
        classes = {parent for kind in self.dataclass_types for parent in kind.__mro__}
        own = {"help", *(name for kind in classes if _is_own(kind) for name in get_annotations(kind))}
        hidden = {
            action: action.help
            for action in self._actions
            if self.dataclass_types
            and action.option_strings
            and (action.dest not in own or action.option_strings[0].startswith("--no_"))
            and action.option_strings != ["--help_all"]
        }
        for action in hidden:
            action.help = SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in hidden.items():
                action.help = text

    def format_help_on_all(self) -> str:
        """Return the help on all options."""
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise an `InputError`, given a message of argparse such as `argument --a/-b: invalid int value: '1.5'`."""
        if message.startswith("argument "):
            option, _, reason = message.removeprefix("argument ").partition(": ")
            message = f"`{option.split('/')[0]}`: {reason}"
        raise InputError(f"{message[0].upper()}{message[1:]}. See `--help`.")

    def check(self, arguments: Sequence[str]) -> None:
        """Check that every option of a command line exists and has a value."""
        options, unknown = self.parse_known_args(list(arguments))
        if not unknown:
            self._check_not_empty(vars(options))
            return
        name = next((argument for argument in unknown if argument.startswith("-")), None)
        if name is None:
            raise InputError(f"`{unknown[0]}` belongs to no option. See `--help`.")
        name = name.partition("=")[0]
        raise InputError(f"`{name}` is unknown. {self.suggestion(name)}")

    def _check_not_empty(self, options: dict[str, Any]) -> None:
        """Check that no value is the empty string, which an unset variable of the shell leaves."""
        for name, value in options.items():
            is_empty = "" in value if isinstance(value, list) else value == ""
            if is_empty and name not in MAY_BE_EMPTY and value != self.get_default(name):
                raise InputError(f"`--{name}` is empty. Give it a value, or remove the option.")

    def suggestion(self, name: str) -> str:
        """Return a sentence with the option whose name is nearest to `name`."""
        nearest = get_close_matches(name.lstrip("-").replace("-", "_"), self.option_names, n=1)
        return f"Did you mean `--{nearest[0]}`?" if nearest else "`--help` lists all options."


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == PACKAGE
