"""The error for an analysis that a model or a text does not allow."""


class Unavailable(ValueError):
    """An analysis that does not apply to a model or a text. Its message is the reason, and what to do."""
