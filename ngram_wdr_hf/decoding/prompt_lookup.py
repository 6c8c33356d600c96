"""Prompt lookup: drafts copied from what followed an earlier occurrence of the last tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

# Maximum number of prompt tokens to index; of a longer prompt, the last ones are kept.
MAX_INDEXED_TOKENS = 8192


@dataclass
class PromptMatch:
    r"""
    An earlier occurrence of the last tokens, and the tokens copied from after it.

    Args:
        text (`Sequence[int]`): The text so far.
        start (`int`): The position to copy from, right after the earlier occurrence.
        match_length (`int`): How many tokens before `start` equal those at the end of the text.
        copied (`list[int]`): The tokens copied so far.
    """

    text: Sequence[int]
    start: int
    match_length: int
    copied: list[int] = field(default_factory=list)

    def next_token(self) -> int:
        """
        Return the next token to copy, and add it to `copied`. Past the end of the text, the copy continues with its
        own tokens, in a loop.
        """
        position = self.start + len(self.copied)
        token = self.text[position] if position < len(self.text) else self.copied[position - len(self.text)]
        self.copied.append(token)
        return token


class PromptLookup:
    r"""
    Index of a text: for every sequence of 1 to `max_match` tokens with a token after it, the position of that token
    after the latest occurrence.

    Args:
        max_match (`int`): Maximum number of tokens to match.

    Attributes:
        num_read (`int`): How many tokens were added.
        tokens (`list[int]`): The indexed text: all tokens added, except the first of a very long prompt.
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
        """
        Return the longest earlier match of the text's last tokens, at its latest occurrence; `None` if even the last
        token is new.
        """
        for length in range(min(self.max_match, len(self.tokens)), 0, -1):
            start = self.positions.get(tuple(self.tokens[-length:]))
            if start is not None:
                return PromptMatch(self.tokens, start, length)
        return None
