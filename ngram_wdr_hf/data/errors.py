"""The error for unusable input."""


class InputError(ValueError):
    """Unusable input from the user. Scripts print the message, one line that says what to do, and exit."""
