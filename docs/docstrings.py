"""An extension for the API pages: it reads the types in docstrings, which are in the style of Transformers."""

import re
from typing import Any

from griffe import Extension, Object

PARAMETER = re.compile(r"^(\s+\w+) \((.*?)\):(?= |$)", flags=re.MULTILINE)
RETURNED = re.compile(r"^(\s+)`([^`]+)`:(?= )", flags=re.MULTILINE)
# The signature shows defaults, and what is optional.
OPTIONAL = re.compile(r",? ?\*optional\*.*")
ALTERNATIVES = re.compile(r"`[^`]*`(?:(?:,| or) `[^`]*`)+")


class TransformersStyle(Extension):
    """Rewrite "name (`int` or `str`, *optional*, defaults to 4):" as "name (int | str):"."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            text = PARAMETER.sub(plain_type, obj.docstring.value)
            obj.docstring.value = RETURNED.sub(r"\1\2:", text)


def plain_type(parameter: re.Match) -> str:
    name, kind = parameter[1], OPTIONAL.sub("", parameter[2])
    if ALTERNATIVES.fullmatch(kind):
        kind = " | ".join(re.findall(r"`([^`]*)`", kind))
    return f"{name} ({kind.replace('`', '')}):" if kind else f"{name}:"
