"""What drafting brought in a generation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .pace import DraftKind


@dataclass
class SpeculationStatistics:
    r"""
    What drafting brought in one call of `generate`.

    Args:
        num_tokens (`int`): Generated tokens, of all rows together.
        num_forwards (`int`): Forward passes of the model, each with all rows that were not finished.
        num_row_forwards (`int`): The same, counted once for each of those rows.
        num_drafted (`list[int]`): How many tokens were drafted as the first after the next one, the second, ...
        num_accepted (`list[int]`): How many of them stood, and are in the text.
        num_copied (`int`): How many of the drafts were copied from the text; the others are the heads'.
        num_copies_accepted (`int`): How many of those stood.
    """

    num_tokens: int = 0
    num_forwards: int = 0
    num_row_forwards: int = 0
    num_drafted: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    num_copied: int = 0
    num_copies_accepted: int = 0

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that a row gains from one forward pass, the prompt's included; 1 without speculation."""
        return self.num_tokens / max(self.num_row_forwards, 1)

    @property
    def acceptance(self) -> list[float]:
        """For each depth, the share of its drafts that stood (all drafts before them included)."""
        return [a / d if d else 0.0 for a, d in zip(self.num_accepted, self.num_drafted, strict=True)]

    def count_forward(self, num_rows: int) -> None:
        self.num_forwards += 1
        self.num_row_forwards += num_rows

    def count_drafts(self, kinds: Sequence[DraftKind | None], num_accepted: int) -> None:
        """Counts the drafts of one row, of which `num_accepted` stood."""
        for depth, kind in enumerate(kinds):
            if kind is None:
                continue
            if depth == len(self.num_drafted):
                self.num_drafted.append(0)
                self.num_accepted.append(0)
            stands = depth < num_accepted
            self.num_drafted[depth] += 1
            self.num_accepted[depth] += stands
            self.num_copied += kind.is_copy
            self.num_copies_accepted += kind.is_copy and stands
