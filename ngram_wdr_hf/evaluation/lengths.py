"""How many tokens a model reads at once."""

from transformers import PreTrainedModel

from ..decoding import reach

# Tokens per block if the user gives none and the model has no limit, or a higher one in training.
DEFAULT_BLOCK_SIZE = 1024


def max_positions(model: PreTrainedModel) -> int | None:
    """Return the longest input of the model in tokens; `None` if there is no limit."""
    return reach.max_positions(model.config)
