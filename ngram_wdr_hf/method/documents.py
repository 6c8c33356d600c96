"""Document boundaries in a batch: no head predicts across padding or into another document."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

# Transformers' label for a position without a target.
IGNORE_INDEX = -100


def read_documents(
    text: Mapping[str, Any],
    hidden_states: torch.Tensor,
    past_length: int | torch.Tensor = 0,
    last_record: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return the run lengths (see [`run_lengths`]) and the positions of a batch's tokens, `(batch_size, T)` each. The
    `text` may have `position_ids`, by default those after `past_length` cached tokens, and an `attention_mask`. Of
    `hidden_states`, only shape and device are used. The `last_record`, `(batch_size, 3)`, is the id, run length and
    position of the last cached token.
    """
    batch_size, length = hidden_states.shape[:2]
    position_ids = text.get("position_ids")
    if position_ids is None:
        position_ids = torch.arange(length, device=hidden_states.device)[None] + past_length
    position_ids = position_ids.expand(batch_size, length)
    is_real, is_linked = read_attention_mask(text.get("attention_mask"), length, past_length)
    previous = () if last_record is None else last_record[:, 1:].unbind(-1)
    return run_lengths(position_ids, is_real, is_linked, *previous), position_ids


def run_lengths(
    position_ids: torch.Tensor,
    is_real: torch.Tensor | None = None,
    is_linked: torch.Tensor | None = None,
    previous_run: torch.Tensor | None = None,
    previous_position: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Return the run length of each position, `(batch_size, T)`: how many tokens of its document it has read, its own
    included; 0 for padding. Head n has predicted the token after position t if and only if `run[t] > n`.

    A token continues the document of the token before it if its position is one higher, unless that is padding (not
    `is_real`) or cannot be attended to (not `is_linked`). `previous_run` and `previous_position`, `(batch_size,)`, are
    those of the token before the first one; without them, the first token starts a document.
    """
    if previous_run is None:
        previous_run = previous_position = position_ids.new_zeros(position_ids.shape[0])
    if position_ids.shape[1] == 1:
        # Fast path for a decoding step: the same computation for one token.
        continues = position_ids == previous_position[:, None] + 1
        runs = torch.where(continues if is_linked is None else continues & is_linked, previous_run[:, None] + 1, 1)
        return runs if is_real is None else torch.where(is_real, runs, 0)
    continues = position_ids == torch.cat([previous_position[:, None], position_ids[:, :-1]], dim=1) + 1
    if is_linked is not None:
        continues = continues & is_linked
    if is_real is not None:
        continues = continues & F.pad(is_real[:, :-1], (1, 0), value=True)
    # Where each token's document starts, negative if inside the cache. A previous run of 0 starts a document at 0.
    steps = torch.arange(position_ids.shape[1], device=position_ids.device)
    starts = torch.where(continues, -previous_run[:, None], steps).cummax(dim=1).values
    runs = steps + 1 - starts
    return runs if is_real is None else torch.where(is_real, runs, 0)


def has_next(runs: torch.Tensor, are_given: bool) -> torch.Tensor:
    """
    Return whether the token after each position belongs to the same document, as booleans `(batch_size, T)`. It is
    False at padding, and True at any other last position, where the next token is unknown. Before padding, it is True
    if the next tokens `are_given` as such, and False if they were made from labels, where it is padding.
    """
    continues = runs[:, 1:] != 1 if are_given else runs[:, 1:] > 1
    return (runs > 0) & F.pad(continues, (0, 1), value=True)


def allowed_by(attention_mask: torch.Tensor) -> torch.Tensor:
    """Return a prepared attention mask as booleans of the same shape: True where attention is allowed."""
    if not attention_mask.is_floating_point():
        return attention_mask.bool()
    # A float mask is added to the attention scores. A moderate value is a bias, not a mask.
    return attention_mask > torch.finfo(attention_mask.dtype).min / 2


def read_attention_mask(
    attention_mask: torch.Tensor | None, length: int, past_length: int | torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """
    Return `is_real` and `is_linked` for [`run_lengths`], of the `length` new tokens after `past_length` cached ones.
    The mask is 2D, ones and zeros for the new tokens alone or with the cache before them (`is_linked` is `None` then);
    or a prepared `(batch_size, 1, length, key_length)` mask. Anything else is ignored: both are `None`.
    """
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim not in (2, 4):
        return None, None
    steps = torch.arange(length, device=attention_mask.device)
    columns = steps + past_length
    if attention_mask.ndim == 2:
        # The mask covers the new tokens, the cache and the new tokens, or a whole static cache.
        if attention_mask.shape[1] > length:
            attention_mask = attention_mask.index_select(1, columns)
        return attention_mask.bool(), None
    allowed = allowed_by(attention_mask)
    # A static cache with a sliding window keeps only its last columns.
    columns = torch.minimum(columns, steps + (allowed.shape[-1] - length))
    # The first token has no predecessor; `run_lengths` starts a document there anyway.
    return allowed[:, 0, steps, columns], allowed[:, 0, steps, (columns - 1).clamp(min=0)]
