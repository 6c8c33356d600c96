"""Prompt lookup: drafts copied from what followed an earlier occurrence of the last tokens."""

from collections.abc import Sequence
from typing import NamedTuple

# Maximum number of prompt tokens to index; of a longer prompt, the last ones are kept.
MAX_INDEXED_TOKENS = 8192


class PromptMatch(NamedTuple):
    """
    An earlier occurrence of the last tokens of `text`. The tokens to copy begin at `start`; the `match_length` tokens
    before it equal those at the end of the text.
    """

    text: Sequence[int]
    start: int
    match_length: int

    def token(self, index: int) -> int:
        """Return a token to copy, the first for index 0. Past the end of the text, the copy repeats itself."""
        return self.text[self.start + index % (len(self.text) - self.start)]


class PromptLookup:
    r"""
    Index of a text: for every sequence of 1 to `max_match` tokens with a token after it, the position of that token
    after the latest occurrence. `num_read` is the number of tokens added so far.
    """

    def __init__(self, max_match: int):
        self.max_match = max_match
        self.num_read = 0
        self.tokens: list[int] = []
        self.positions: dict[tuple[int, ...], int] = {}

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text and index them; at most the last `MAX_INDEXED_TOKENS` of them."""
        self.num_read += len(tokens)
        for token in tokens[-MAX_INDEXED_TOKENS:]:
            position = len(self.tokens)
            for length in range(1, min(self.max_match, position) + 1):
                self.positions[tuple(self.tokens[position - length :])] = position
            self.tokens.append(token)

    def find(self) -> PromptMatch | None:
        """Return the longest earlier match of the text's last tokens, at its latest occurrence, or `None`."""
        for length in range(min(self.max_match, len(self.tokens)), 0, -1):
            start = self.positions.get(tuple(self.tokens[-length:]))
            if start is not None:
                return PromptMatch(self.tokens, start, length)
        return None
