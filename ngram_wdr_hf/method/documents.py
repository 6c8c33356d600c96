"""Where documents begin and end in a batch: no head may predict across padding or into another document."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

# The label of a position without a target, as everywhere in Transformers.
IGNORE_INDEX = -100


def read_documents(
    text: Mapping[str, Any],
    hidden_states: torch.Tensor,
    past_length: int | torch.Tensor = 0,
    last_record: torch.Tensor | None = None,
) -> tuple[torch.LongTensor, torch.LongTensor]:
    r"""
    The `run_lengths` and the positions of the tokens of a text, `(batch_size, T)` each.

    Args:
        text (`Mapping[str, Any]`): What the model was given, of which `position_ids` and `attention_mask` are read.
        hidden_states (`torch.Tensor` of shape `(batch_size, T, d)`): Those of the tokens.
        past_length (`int` or `torch.LongTensor`, *optional*, defaults to 0): The number of tokens before them.
        last_record (`torch.LongTensor` of shape `(batch_size, 3)`, *optional*):
            Of the token before the first: its id, run length and position.
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
    r"""
    For each token, how many tokens of its document have been read, itself included; 0 for padding. Head n has
    something to say about what follows time t exactly when `run[t] > n`.

    Args:
        position_ids (`torch.LongTensor` of shape `(batch_size, T)`):
            A token belongs to the document of the token before it if its position is one higher.
        is_real (`torch.BoolTensor` of shape `(batch_size, T)`, *optional*): False for padding.
        is_linked (`torch.BoolTensor` of shape `(batch_size, T)`, *optional*):
            False for a token that may not attend to the token before it.
        previous_run (`torch.LongTensor` of shape `(batch_size,)`, *optional*): The run of the token before the first.
        previous_position (`torch.LongTensor` of shape `(batch_size,)`, *optional*): And its position.

    Returns:
        `torch.LongTensor` of shape `(batch_size, T)`.
    """
    if previous_run is None:
        previous_run = previous_position = position_ids.new_zeros(position_ids.shape[0])
    if position_ids.shape[1] == 1:
        # A step of decoding, where every operation counts: what follows, for one token.
        continues = position_ids == previous_position[:, None] + 1
        runs = torch.where(continues if is_linked is None else continues & is_linked, previous_run[:, None] + 1, 1)
        return runs if is_real is None else torch.where(is_real, runs, 0)
    continues = position_ids == torch.cat([previous_position[:, None], position_ids[:, :-1]], dim=1) + 1
    if is_linked is not None:
        continues = continues & is_linked
    if is_real is not None:
        continues = continues & F.pad(is_real[:, :-1], (1, 0), value=True)
    # The step at which each token's document began, not positive if it began before the first token here: a previous
    # run of 0, of padding or of nothing at all, begins one at step 0 as well.
    steps = torch.arange(position_ids.shape[1], device=position_ids.device)
    began = torch.where(continues, -previous_run[:, None], steps).cummax(dim=1).values
    runs = steps + 1 - began
    return runs if is_real is None else torch.where(is_real, runs, 0)


def allowed_by(attention_mask: torch.Tensor) -> torch.Tensor:
    """What a prepared mask, of ones and zeros or added to the attention scores, lets be seen."""
    if not attention_mask.is_floating_point():
        return attention_mask.bool()
    # Added to the scores, a finite bias is no prohibition.
    return attention_mask > torch.finfo(attention_mask.dtype).min / 2


def read_attention_mask(
    attention_mask: torch.Tensor | None, length: int, past_length: int | torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    r"""
    What an attention mask says about the last `length` tokens.

    Args:
        attention_mask (`torch.Tensor`, *optional*):
            The usual `(batch_size, past_length + length)` mask of ones and zeros, or a prepared
            `(batch_size, 1, length, key_length)` mask: boolean, or added to the attention scores. Anything else
            (a mask without tensor form) says nothing; `position_ids` then speak alone.
        length (`int`): How many new tokens there are.
        past_length (`int` or `torch.LongTensor`): How many tokens the cache holds before them.

    Returns:
        `(is_real, is_linked)` as `run_lengths` takes them.
    """
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim not in (2, 4):
        return None, None
    steps = torch.arange(length, device=attention_mask.device)
    own = steps + past_length
    if attention_mask.ndim == 2:
        # A mask of the new tokens alone, of all up to now, or as wide as a static cache.
        if attention_mask.shape[1] > length:
            attention_mask = attention_mask.index_select(1, own)
        return attention_mask.bool(), None
    allowed = allowed_by(attention_mask)
    # A static cache with a sliding window keeps its last columns only.
    own = torch.minimum(own, steps + (allowed.shape[-1] - length))
    # The token before the very first one does not exist; `run_lengths` starts a document there anyway.
    return allowed[:, 0, steps, own], allowed[:, 0, steps, (own - 1).clamp(min=0)]
