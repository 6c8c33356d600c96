"""All code that differs between versions of Transformers: 5.16 to 5.23 are supported."""

from transformers import DynamicLayer, PreTrainedModel


def is_croppable(layer: object) -> bool:
    """Return whether the last tokens can be removed from a cache layer. Layers know it themselves since 5.17."""
    return getattr(layer, "is_croppable", isinstance(layer, DynamicLayer))


def is_checkpointing(model: PreTrainedModel) -> bool:
    """Return whether a model computes activations anew in the backward pass. The property has another name in 5.23."""
    new, old = "is_activation_checkpointing", "is_gradient_checkpointing"
    return getattr(model, new if hasattr(type(model), new) else old)
