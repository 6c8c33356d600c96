"""The error for unusable input."""


class InputError(ValueError):
    """
    Unusable input from the user: an option, a file, a dataset or a model. The message is one line that says what to
    do. Scripts print it without a traceback and exit with code 2.
    """
