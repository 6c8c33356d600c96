"""Bad input, said in one sentence."""


class InputError(ValueError):
    """Something the user gave is not usable. The message says what, and what to do; a script prints it and exits."""
