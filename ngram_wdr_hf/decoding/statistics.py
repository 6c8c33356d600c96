"""Acceptance rates of a generation, and where its tokens came from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from transformers.utils import logging

from .pace import DraftKind

# A part of Transformers' log, which it is set up with: by `TRANSFORMERS_VERBOSITY=info`, or `--log-level` of a server.
generation_logger = logging.get_logger("transformers.ngram_wdr_hf")
# The sources of tokens; a head's is its depth, 1 for the first.
MODEL_SOURCE, LOOKUP_SOURCE = 0, -1


class TokenTrace(NamedTuple):
    r"""
    Where one generated token came from. A draft is `(token id, source)`. A source is 0 for the model itself, n for
    head n, and -1 for prompt lookup.

    Args:
        token (`int`): The token id.
        source (`int`): Its source.
        rejected (`tuple[tuple[int, int], ...]`):
            The draft for this position that was rejected, if there was one: the token is then the model's own.
        dropped (`tuple[tuple[int, int], ...]`):
            The drafts for the positions after it that were made along with the rejected one.
    """

    token: int
    source: int
    rejected: tuple[tuple[int, int], ...] = ()
    dropped: tuple[tuple[int, int], ...] = ()


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
        draft_cost (`float`): The cost of making and checking all drafts, in forward passes, as [`DraftPace`] reckons.
        trace (`list[list[TokenTrace]]`): For each batch row, where each of its generated tokens came from.
    """

    num_tokens: int = 0
    num_forwards: int = 0
    num_row_forwards: int = 0
    num_drafted: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    num_copied: int = 0
    num_copies_accepted: int = 0
    draft_cost: float = 0.0
    trace: list[list[TokenTrace]] = field(default_factory=list, repr=False)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per row and forward pass, the prompt's forward pass included; 1 without drafts."""
        return self.num_tokens / max(self.num_row_forwards, 1)

    @property
    def estimated_speedup(self) -> float:
        """
        Tokens per forward pass, divided by the mean cost of a forward pass with its drafts: how many times as fast as
        without drafts. It follows from counts and sizes; no time is measured.
        """
        return self.tokens_per_forward / (1 + self.draft_cost / max(self.num_forwards, 1))

    @property
    def acceptance(self) -> list[float]:
        """
        Acceptance rate at depth 1, 2, ...: accepted drafts over all drafts. A draft after a rejected one is rejected.
        """
        return [a / d if d else 0.0 for a, d in zip(self.num_accepted, self.num_drafted, strict=True)]

    def log(self) -> None:
        """Log the counts in one line, at the level of information."""
        rates = ", ".join(f"{rate:.2f}" for rate in self.acceptance) or "no drafts"
        generation_logger.info(
            f"Speculative decoding: {self.num_tokens} tokens, {self.num_row_forwards} forward passes, acceptance by "
            f"depth: {rates}"
        )

    def __add__(self, other: "SpeculationStatistics") -> "SpeculationStatistics":
        """Return the statistics of two calls together; the rows of the other one's trace come last."""
        return SpeculationStatistics(
            num_tokens=self.num_tokens + other.num_tokens,
            num_forwards=self.num_forwards + other.num_forwards,
            num_row_forwards=self.num_row_forwards + other.num_row_forwards,
            num_drafted=_add(self.num_drafted, other.num_drafted),
            num_accepted=_add(self.num_accepted, other.num_accepted),
            num_copied=self.num_copied + other.num_copied,
            num_copies_accepted=self.num_copies_accepted + other.num_copies_accepted,
            draft_cost=self.draft_cost + other.draft_cost,
            trace=[*self.trace, *other.trace],
        )

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

    def trace_tokens(
        self,
        row: int,
        tokens: Sequence[int],
        num_accepted: int,
        drafts: Sequence[int],
        kinds: Sequence[DraftKind | None],
    ) -> None:
        r"""
        Add the tokens that a batch row gains in a step to its trace.

        Args:
            row (`int`): The index of the row in the full batch.
            tokens (`Sequence[int]`): The new tokens: the accepted drafts and one more, or less where the row ends.
            num_accepted (`int`): The number of accepted drafts, including those after the end of the row.
            drafts (`Sequence[int]`): All drafts of the row in this step.
            kinds (`Sequence[DraftKind | None]`): Their kinds. What stands in for a missing draft has the kind `None`.
        """
        trace = self.trace[row]
        if not drafts:
            trace += [TokenTrace(token, MODEL_SOURCE) for token in tokens]
            return
        sources = [_source_of(kind, n) for n, kind in enumerate(kinds, start=1)]
        trace += [TokenTrace(*pair) for pair in zip(tokens[:num_accepted], sources, strict=False)]
        if len(tokens) > num_accepted:
            pairs = zip(drafts[num_accepted:], sources[num_accepted:], strict=True)
            rejected = tuple(pair for pair in pairs if pair[1] != MODEL_SOURCE)
            trace.append(TokenTrace(tokens[num_accepted], MODEL_SOURCE, rejected[:1], rejected[1:]))


def _add(first: list[int], second: list[int]) -> list[int]:
    return [a + b for a, b in zip_longest(first, second, fillvalue=0)]


def _source_of(kind: DraftKind | None, depth: int) -> int:
    """Return the source of a draft at depth 1, 2, ...; a missing draft, `None`, counts as the model's."""
    if kind is None:
        return MODEL_SOURCE
    return LOOKUP_SOURCE if kind.is_lookup else depth
