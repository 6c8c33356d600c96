"""Tokens as text: the ids of a text, labels of tokens, and what each token adds to a text."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

# A text or its token ids, or a list of these.
TextOrIds = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | torch.Tensor
# The space before a word in byte-level BPE and SentencePiece.
SPACE_MARKS = ("Ġ", "▁")
# WordPiece's mark of a piece inside a word.
PIECE_MARK = "##"
CONTINUES = "·"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LINE_MARKS = str.maketrans({"\n": "⏎", "\r": "⏎", "\t": "⇥"})
# A character has at most four bytes in UTF-8, and a token has at least one.
MAX_TOKENS_OF_CHARACTER = 4


def token_rows(
    text_or_ids: TextOrIds, tokenizer: PreTrainedTokenizerBase, vocab_size: int, add_special_tokens: bool = False
) -> list[list[int]]:
    """
    Return the token ids of each document. Raise a `ValueError` if one is not in the vocabularies of tokenizer and
    model; `vocab_size` is the model's.
    """
    if isinstance(text_or_ids, Mapping):
        raise ValueError("Expected a text or token ids: pass the `input_ids` of the tokenizer's output.")
    rows = text_or_ids.tolist() if isinstance(text_or_ids, (torch.Tensor, np.ndarray)) else text_or_ids
    if isinstance(rows, str) or all(isinstance(token, int) for token in rows):
        rows = [rows]
    options = {"add_special_tokens": add_special_tokens, "verbose": False}
    rows = [
        tokenizer(row, **options).input_ids if isinstance(row, str) else [int(token) for token in row] for row in rows
    ]
    vocab_size = min(vocab_size, len(tokenizer))
    for token in (token for row in rows for token in row):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"The text has the token id {token}, and tokenizer and model share {vocab_size} tokens: use the "
                "model's own tokenizer, and leave out padding."
            )
    return rows


def token_labels(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """
    Return a label for each token of a text: `to` for `Ġto` and `▁to`, `⏎` for a line break, and `·ing` for a piece
    inside a word. Different tokens have different labels, if need be with their id: `to#42`.
    """
    pieces = {token: tokenizer.convert_ids_to_tokens(token) for token in set(ids)}
    labels = {token: _readable(token, piece, tokenizer) for token, piece in pieces.items()}
    has_marks = any(piece.startswith(SPACE_MARKS) for piece in pieces.values())
    no_space = {token for token, piece in pieces.items() if has_marks and not piece.startswith(SPACE_MARKS)}
    inside_words = {
        token
        for before, token in pairwise(ids)
        if token in no_space and labels[before][-1].isalnum() and labels[token][0].isalnum()
    }
    distinct = {}
    # If a word and a piece read the same, mark the piece.
    for token in sorted(pieces, key=lambda token: (token in no_space, token)):
        label = labels[token]
        if token in inside_words or (token in no_space and label in distinct):
            label = CONTINUES + label
        distinct[label if label not in distinct else f"{label}#{token}"] = token
    names = {token: label for label, token in distinct.items()}
    return [names[token] for token in ids]


def _readable(token: int, piece: str, tokenizer: PreTrainedTokenizerBase) -> str:
    if token in tokenizer.all_special_ids:
        return piece
    text = _decode([token], tokenizer)
    if REPLACEMENT in text:
        return f"{REPLACEMENT}{token}"
    if text.startswith(PIECE_MARK) and text != PIECE_MARK:
        return CONTINUES + text.removeprefix(PIECE_MARK)
    return (text.strip(" ") or "␣").replace(" ", "␣").translate(LINE_MARKS)


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


def texts_after(before: Sequence[int], ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return what each of the tokens `ids` adds to a text that ends in the tokens `before`."""
    # The last tokens may begin a character.
    before = before[-2 * MAX_TOKENS_OF_CHARACTER :]
    return token_texts([*before, *ids], tokenizer)[len(before) :]


def _decode(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
