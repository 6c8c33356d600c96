"""The project's own errors."""


class InputError(ValueError):
    """Unusable input from the user: an option, a file, a dataset or a model. The message says what to do."""


class Unavailable(ValueError):
    """An analysis that does not apply to a model or a text. The message is the reason, and what to do."""
