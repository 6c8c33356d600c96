"""Tokens as text: the ids of a text, what each token adds to it, and labels of tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

# A text or its token ids, or a list of these.
TextOrIds = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | torch.Tensor
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LINE_MARKS = str.maketrans({"\n": "⏎", "\r": "⏎", "\t": "⇥"})
# A character has at most four bytes in UTF-8, and a token has at least one.
MAX_TOKENS_OF_CHARACTER = 4


def token_rows(text_or_ids: TextOrIds, tokenizer: PreTrainedTokenizerBase, **options) -> list[list[int]]:
    """Return the token ids of each document; `options` are the tokenizer's."""
    if isinstance(text_or_ids, Mapping):
        raise ValueError("Expected a text or token ids: pass the `input_ids` of the tokenizer's output.")
    rows = text_or_ids.tolist() if isinstance(text_or_ids, (torch.Tensor, np.ndarray)) else text_or_ids
    if isinstance(rows, str) or all(isinstance(token, int) for token in rows):
        rows = [rows]
    return [
        tokenizer(row, verbose=False, **options).input_ids if isinstance(row, str) else [*map(int, row)]
        for row in rows
    ]


def token_texts(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """
    Return what each token adds to the text of the tokens before it: `" to"` for `Ġto` and `▁to`, and a special token
    as its name. If several tokens make up a character, the last of them adds it and the others add `""`.
    """
    texts: list[str] = []
    # Where the last tokens with a text begin. Decoded with the next ones, they show whether a space is between them.
    last = 0
    for end in range(1, len(ids) + 1):
        begin = len(texts)
        text = _decode(ids[last:end], tokenizer)
        is_incomplete = text.endswith(REPLACEMENT) and end - begin < MAX_TOKENS_OF_CHARACTER
        if is_incomplete and end < len(ids):
            continue
        before = _decode(ids[last:begin], tokenizer) if last < begin else ""
        texts += [""] * (end - begin - 1) + [text[len(before) :]]
        last = begin
    return texts


def token_labels(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """
    Return a label for each token of a text: `to` for `Ġto` and `▁to`, `⏎` for a line break, and `·ing` for a piece
    inside a word. Different tokens have different labels, if need be with their id: `to#42`.
    """
    texts, labels = token_texts(ids, tokenizer), {}
    for before, token, text in zip(["", *texts], ids, texts, strict=False):
        if token not in labels:
            label = text.strip(" ").translate(LINE_MARKS) or ("␣" if text else REPLACEMENT)
            label = f"·{label}" if before[-1:].isalnum() and text[:1].isalnum() else label
            labels[token] = f"{label}#{token}" if label in labels.values() else label
    return [labels[token] for token in ids]


def _decode(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
