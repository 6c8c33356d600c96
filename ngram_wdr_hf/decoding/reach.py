"""How far the positions of a model reach."""

from transformers import PreTrainedConfig

from .obstacles import CannotDraft

# Rotary positions whose frequencies change for the whole text when it exceeds a length.
CHANGING_ROPE = ("dynamic", "longrope")


def max_positions(config: PreTrainedConfig) -> int | None:
    """Return the longest text that a model with this configuration reads, in tokens; `None` if there is no limit."""
    try:
        return getattr(config, "max_position_embeddings", None)
    except NotImplementedError:  # what some configurations do instead of having no attribute
        return None


def check_rope(config: PreTrainedConfig, max_length: int) -> None:
    """Raise `CannotDraft` if a text of `max_length` tokens changes the rotary positions of all tokens before."""
    parameters = getattr(config, "rope_parameters", None) or {}
    # Some models have parameters for each type of layer.
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if rope.get("rope_type") in CHANGING_ROPE:
            limit = rope.get("original_max_position_embeddings") or max_positions(config)
            if limit is not None and max_length > limit:
                raise CannotDraft(
                    f"`use_mtp=True` cannot be used for texts of more than {limit} tokens, where this model changes "
                    f"its positions (`rope_type={rope['rope_type']!r}`), and the maximum length is {max_length}: "
                    "reduce `max_new_tokens`, or set `use_mtp=False`."
                )
