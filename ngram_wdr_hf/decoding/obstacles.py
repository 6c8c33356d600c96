"""What speculative decoding cannot be used with."""


class CannotDraft(ValueError):
    """`use_mtp=True` cannot be used with this model, or with another option of the same call of `generate`."""
