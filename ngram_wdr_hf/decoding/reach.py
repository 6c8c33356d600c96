"""How far the positions of a model reach."""

import math

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


def table_size(config: PreTrainedConfig) -> float:
    """Return the number of positions that the model has a table of; infinity if it needs none."""
    limit = None if getattr(config, "rope_parameters", None) else max_positions(config)
    return math.inf if limit is None else limit


def check_rope(config: PreTrainedConfig, num_rows: int, prompt_length: int, max_length: int) -> None:
    """
    Raise `CannotDraft` if the rotary positions of all tokens can change while the prompts grow to `max_length` tokens.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    # Some models have parameters for each type of layer.
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if rope.get("rope_type") in CHANGING_ROPE:
            limit = rope.get("original_max_position_embeddings") or max_positions(config)
            # "longrope" changes only once. But in a batch, it depends on the rows that are not finished yet.
            is_past = rope["rope_type"] == "longrope" and num_rows == 1 and prompt_length > (limit or 0)
            if limit is not None and max_length > limit and not is_past:
                raise CannotDraft(
                    f"`use_mtp=True` cannot be used for texts of more than {limit} tokens, where this model changes "
                    f"its positions (`rope_type={rope['rope_type']!r}`), and the maximum length is {max_length}: "
                    "reduce `max_new_tokens`, or set `use_mtp=False`."
                )
