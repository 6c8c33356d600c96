"""Acceptance rates of a generation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .pace import DraftKind


@dataclass
class SpeculationStatistics:
    r"""
    Counts of tokens, forward passes and drafts in one call of `generate`.

    Args:
        num_tokens (`int`): Generated tokens, summed over all batch rows.
        num_forwards (`int`): Forward passes of the model, each over all unfinished rows.
        num_row_forwards (`int`): The same, each counted as often as it has unfinished rows.
        num_drafted (`list[int]`): Number of drafts at depth 1, 2, ...; depth 1 is the first after the next token.
        num_accepted (`list[int]`): Number of accepted drafts at each depth.
        num_copied (`int`): Drafts by prompt lookup; all other drafts are the heads'.
        num_copies_accepted (`int`): Accepted drafts by prompt lookup.
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
        """Tokens per row and forward pass, the prompt's forward pass included; 1 without drafts."""
        return self.num_tokens / max(self.num_row_forwards, 1)

    @property
    def acceptance(self) -> list[float]:
        """
        Acceptance rate at depth 1, 2, ...: accepted drafts over all drafts. A draft after a rejected one is rejected.
        """
        return [a / d if d else 0.0 for a, d in zip(self.num_accepted, self.num_drafted, strict=True)]

    def count_forward(self, num_rows: int) -> None:
        """Count a forward pass over `num_rows` unfinished rows."""
        self.num_forwards += 1
        self.num_row_forwards += num_rows

    def count_drafts(self, kinds: Sequence[DraftKind | None], num_accepted: int) -> None:
        """Count the drafts of one row, the first `num_accepted` of them as accepted. `None` in `kinds` is no draft."""
        for depth, kind in enumerate(kinds):
            if kind is None:
                continue
            if depth == len(self.num_drafted):
                self.num_drafted.append(0)
                self.num_accepted.append(0)
            is_accepted = depth < num_accepted
            self.num_drafted[depth] += 1
            self.num_accepted[depth] += is_accepted
            self.num_copied += kind.is_lookup
            self.num_copies_accepted += kind.is_lookup and is_accepted
