"""Token ids from what a user gives: a text, ids, or a list of these."""

from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

# A text or its token ids, or a list of these.
TextOrIds = str | Iterable[str] | Iterable[int] | Iterable[Iterable[int]] | torch.Tensor


def token_rows(
    name: str, text_or_ids: TextOrIds, tokenizer: PreTrainedTokenizerBase, add_special_tokens: bool = False
) -> Iterator[list[int]]:
    r"""
    Yield the token ids of each document. Raise a `ValueError` about the argument `name` if a document is neither text
    nor ids.

    Args:
        name (`str`): The name of the argument.
        text_or_ids (`str`, `Sequence` or `torch.Tensor`): A text or its token ids, or a list of such documents.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of texts.
        add_special_tokens (`bool`, *optional*, defaults to `False`):
            Whether texts get the special tokens that the tokenizer adds.
    """
    rows = _as_list(text_or_ids)
    for row in [rows] if _are_ids(rows) else rows:
        ids = (
            tokenizer(row, add_special_tokens=add_special_tokens, verbose=False).input_ids
            if isinstance(row, str)
            else _as_list(row)
        )
        if not _are_ids(ids):
            raise ValueError(
                f"`{name}` must be a text, a list or tensor of token ids, or a list of these, got {type(row)}: "
                "pass the text, or the `input_ids` of the tokenizer's output."
            )
        yield ids


def check_ids(name: str, ids: list[int], vocab_size: int, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Raise a `ValueError` about the argument `name` if one of its tokens is not in the vocabularies of the model and the
    tokenizer.
    """
    if min(ids) < 0:
        raise ValueError(f"`{name}` has the token id {min(ids)}: leave out padding and ignored labels.")
    if max(ids) >= min(vocab_size, len(tokenizer)):
        raise ValueError(
            f"`{name}` has the token id {max(ids)}, but `tokenizer` has {len(tokenizer)} tokens and the model "
            f"{vocab_size} output embeddings: use the model's own tokenizer."
        )


def _as_list(rows: Any) -> list:
    if isinstance(rows, (torch.Tensor, np.ndarray)):
        rows = rows.tolist()
    if isinstance(rows, str) or not isinstance(rows, Iterable):
        return [rows]
    # The keys of a tokenizer's output would be taken for text.
    return [rows] if isinstance(rows, Mapping) else list(rows)


def _are_ids(row: list) -> bool:
    return all(isinstance(token, Integral) for token in row)
