"""All code that differs between versions of Transformers: 5.16 to 5.23 are supported."""

from transformers import DynamicLayer


def is_croppable(layer: object) -> bool:
    """Return whether the last tokens can be removed from a cache layer. Layers know it themselves since 5.17."""
    return getattr(layer, "is_croppable", isinstance(layer, DynamicLayer))
