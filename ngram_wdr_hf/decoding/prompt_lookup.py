"""Drafts that cost nothing: what followed the last few tokens when they stood in the text before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

# Of a long prompt, so many tokens at its end are remembered.
LONGEST_MEMORY = 8192


@dataclass
class Copy:
    r"""
    A piece of text that may come again.

    Args:
        text (`Sequence[int]`): The text so far.
        place (`int`): Where in it the piece begins.
        match_length (`int`): How many tokens before the piece are those at the end of the text.
    """

    text: Sequence[int]
    place: int
    match_length: int
    copied: list[int] = field(default_factory=list)

    def next_token(self) -> int:
        """Copies one token more. After the end of the text come the copies themselves, as in a text that repeats."""
        here = self.place + len(self.copied)
        token = self.text[here] if here < len(self.text) else self.copied[here - len(self.text)]
        self.copied.append(token)
        return token


class TextMemory:
    r"""
    Remembers what followed every short sequence of tokens in a text when it came last.

    Args:
        longest_match (`int`): How many tokens are compared at most.
    """

    def __init__(self, longest_match: int):
        self.longest_match = longest_match
        self.num_read = 0
        self.tokens: list[int] = []
        self.places: dict[tuple[int, ...], int] = {}

    def add(self, tokens: Sequence[int]) -> None:
        self.num_read += len(tokens)
        for token in tokens[-LONGEST_MEMORY:]:
            here = len(self.tokens)
            for length in range(1, min(self.longest_match, here) + 1):
                self.places[tuple(self.tokens[here - length :])] = here
            self.tokens.append(token)

    def find(self) -> Copy | None:
        """What may come next: what came after the same tokens as those at the end."""
        for length in range(min(self.longest_match, len(self.tokens)), 0, -1):
            place = self.places.get(tuple(self.tokens[-length:]))
            if place is not None:
                return Copy(self.tokens, place, length)
        return None
