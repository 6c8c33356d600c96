"""Misspelt names of this package's own fields, arguments and options."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache

# How similar two names are, from 0 to 1, if one is a misspelling of the other.
CLOSE = 0.85


def refuse_misspelt(given: Iterable[str], own: tuple[str, ...], error: type[Exception] = TypeError) -> None:
    """Raise an `error` for a given name that is almost one of our `own`. Any other name is left to Transformers."""
    for name in given:
        intended = _intended(name, own)
        if intended is not None:
            raise error(f"`{name}` is unknown: `{intended}` is probably meant.")


@cache
def _intended(name: str, own: tuple[str, ...]) -> str | None:
    """Return the name of ours that `name` misspells; `None` if it is one of ours, or not close to any."""
    return None if name in own else next(iter(get_close_matches(name, own, n=1, cutoff=CLOSE)), None)
