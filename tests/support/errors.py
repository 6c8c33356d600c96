"""Checks that an error names an option, field or file, whatever its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises_naming(kind: type[BaseException], *names: str) -> Iterator[pytest.ExceptionInfo]:
    """Expect an error of type `kind` with a one-line message that contains all `names`."""
    with pytest.raises(kind) as caught:
        yield caught
    assert_names(str(caught.value), *names)


def assert_names(message: str, *names: str) -> None:
    """Check that `message` is one line and contains all `names`."""
    assert "\n" not in message.strip(), message
    for name in names:
        assert name in message, f"{name!r} is not in: {message}"
