"""Readable labels for tokens."""

from collections.abc import Sequence
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

# The space before a word in byte-level BPE and SentencePiece.
SPACE_MARKS = ("Ġ", "▁")
# WordPiece's mark of a piece inside a word.
PIECE_MARK = "##"
CONTINUES = "·"
VISIBLE = str.maketrans({"\n": "⏎", "\r": "⏎", "\t": "⇥", " ": "␣"})


def token_labels(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """
    Return labels without the tokenizer's marks: `to` for `Ġto` and `▁to`, `⏎` for a line break, and `·ing` for a
    piece inside a word. Different tokens have different labels, if need be with their id: `to#42`.

    Args:
        ids (`Sequence[int]`): The token ids of a text, in order.
        tokenizer (`PreTrainedTokenizerBase`): Their tokenizer.

    Returns:
        `list[str]`: A label for each token of the text, in order.
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
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    if "\N{REPLACEMENT CHARACTER}" in text:
        return f"\N{REPLACEMENT CHARACTER}{token}"
    if text.startswith(PIECE_MARK) and text != PIECE_MARK:
        return CONTINUES + text.removeprefix(PIECE_MARK)
    return (text.strip(" ") or text or " ").translate(VISIBLE)
