"""Acceptance rates of a generation, and where its tokens came from."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from .draft_depth import DraftKind

logger = logging.getLogger(__name__)
# The sources of tokens; a head's is its depth, 1 for the first.
MODEL_SOURCE, LOOKUP_SOURCE = 0, -1


class TokenTrace(NamedTuple):
    """
    Where one generated token came from: a source is 0 for the model itself, n for head n, and -1 for prompt lookup.
    `rejected` is the draft for this position that was rejected, if there was one, and `dropped` are those after it
    that were made along with it, each as `(token id, source)`.
    """

    token: int
    source: int
    rejected: tuple[tuple[int, int], ...] = ()
    dropped: tuple[tuple[int, int], ...] = ()


@dataclass
class SpeculationStatistics:
    r"""
    Counts of tokens, forward passes and drafts in one call of `generate`. The rates have the names that vLLM uses.

    Args:
        num_tokens (`int`): Generated tokens, summed over all batch rows.
        num_forwards (`int`): Forward passes of the model, each over all unfinished rows.
        num_row_forwards (`int`): The same, each counted as often as it has unfinished rows.
        num_drafted (`list[int]`): Number of drafts at depth 1, 2, ...; depth 1 is the first after the next token.
        num_accepted (`list[int]`): Number of accepted drafts at each depth.
        num_copied (`list[int]`): Those of `num_drafted` by prompt lookup; all others are the heads'.
        num_copies_accepted (`list[int]`): Those of `num_accepted` by prompt lookup.
        explanation (`str`): Why forward passes had no drafts although there was room for them; empty if none.
        trace (`list[list[TokenTrace]]`): For each batch row, where each of its generated tokens came from.
    """

    num_tokens: int = 0
    num_forwards: int = 0
    num_row_forwards: int = 0
    num_drafted: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    num_copied: list[int] = field(default_factory=list)
    num_copies_accepted: list[int] = field(default_factory=list)
    explanation: str = ""
    trace: list[list[TokenTrace]] = field(default_factory=list, repr=False)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per row and forward pass, the prompt's forward pass included; 1 without drafts."""
        return self.num_tokens / max(self.num_row_forwards, 1)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted drafts over all drafts; 0 without drafts."""
        return sum(self.num_accepted) / max(sum(self.num_drafted), 1)

    @property
    def acceptance_rate_per_position(self) -> list[float]:
        """The same at depth 1, 2, ... A draft after a rejected one is rejected."""
        return _rates(self.num_accepted, self.num_drafted)

    @property
    def acceptance_rate_by_source(self) -> dict[str, list[float]]:
        """The same for drafts by the `"heads"`, head n at depth n, and by prompt `"lookup"`; empty without drafts."""
        heads = [
            [number - copied for number, copied in zip(numbers, copies, strict=True)]
            for numbers, copies in (
                (self.num_accepted, self.num_copies_accepted),
                (self.num_drafted, self.num_copied),
            )
        ]
        return {"heads": _rates(*heads), "lookup": _rates(self.num_copies_accepted, self.num_copied)}

    def log(self) -> None:
        """Log the rates in one line, at the level of information."""
        rates = {
            source: ", ".join(f"{rate:.2f}" for rate in rates) or "no drafts"
            for source, rates in self.acceptance_rate_by_source.items()
        }
        logger.info(
            f"Speculative decoding: {self.num_tokens} tokens, mean acceptance length "
            f"{self.mean_acceptance_length:.2f}, acceptance rate per position: heads {rates['heads']}; prompt lookup "
            f"{rates['lookup']}. {self.explanation}".rstrip()
        )

    def __add__(self, other: "SpeculationStatistics") -> "SpeculationStatistics":
        """Return the statistics of two calls together; the rows of the other one's trace come last."""
        total = SpeculationStatistics(
            trace=self.trace + other.trace, explanation=other.explanation or self.explanation
        )
        for name in vars(self).keys() - {"trace", "explanation"}:
            mine, others = getattr(self, name), getattr(other, name)
            is_list = isinstance(mine, list)
            setattr(total, name, list(map(sum, zip_longest(mine, others, fillvalue=0))) if is_list else mine + others)
        return total

    def count_forward(self, num_rows: int) -> None:
        """Count a forward pass over `num_rows` unfinished rows."""
        self.num_forwards += 1
        self.num_row_forwards += num_rows

    def count_step(
        self,
        row: int,
        tokens: Sequence[int],
        num_accepted: int,
        drafts: Sequence[int],
        kinds: Sequence[DraftKind | None],
    ) -> None:
        """
        Count the new `tokens` of a row of the full batch in a step: its accepted drafts and one more, or less where
        the row ends. `kinds` has `None` where it has no draft.
        """
        self.num_tokens += len(tokens)
        pairs = []
        for i, (token, kind) in enumerate(zip(drafts, kinds, strict=True)):
            if kind is None:
                pairs.append((token, MODEL_SOURCE))
                continue
            pairs.append((token, LOOKUP_SOURCE if kind.is_lookup else i + 1))
            if i == len(self.num_drafted):
                for numbers in (self.num_drafted, self.num_accepted, self.num_copied, self.num_copies_accepted):
                    numbers.append(0)
            # Drafts after the end of a row do not count as accepted.
            is_accepted = i < min(num_accepted, len(tokens))
            self.num_drafted[i] += 1
            self.num_accepted[i] += is_accepted
            self.num_copied[i] += kind.is_lookup
            self.num_copies_accepted[i] += kind.is_lookup and is_accepted
        self.trace[row] += [TokenTrace(*pair) for pair in pairs[: min(num_accepted, len(tokens))]]
        if len(tokens) > num_accepted:
            others = tuple(pair for pair in pairs[num_accepted:] if pair[1] != MODEL_SOURCE)
            self.trace[row].append(TokenTrace(tokens[num_accepted], MODEL_SOURCE, others[:1], others[1:]))


def _rates(accepted: Sequence[int], drafted: Sequence[int]) -> list[float]:
    """Return the acceptance rates of the depths with drafts."""
    return [num_accepted / number for num_accepted, number in zip(accepted, drafted, strict=True) if number]
