"""The ensemble's gain per token, in bins."""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

# The lower bounds of the bins: position in the sentence, and count in training.
POSITIONS = (1, 2, 3, 4, 5, 9, 17, 33)
FREQUENCIES = (0, 10, 100, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class GainBin:
    r"""
    The ensemble's gain on a group of tokens.

    Args:
        label (`str`): The name of the group: its range of positions or counts, such as `5–8`.
        num_tokens (`int`): Number of tokens.
        mean (`float`): The mean NLL without the ensemble minus the mean NLL with it, in nats; above 0, it helps.
        standard_error (`float`):
            The standard error of the mean for independent tokens; NaN for a single token.
    """

    label: str
    num_tokens: int
    mean: float
    standard_error: float


class SentencePositions:
    """
    Positions of target tokens in their sentence, counted from 1; other tokens do not count. With `row_is_sentence`,
    every row is a sentence. Otherwise all rows, one after the other and on into the next batch, are one running text,
    in which a token of `sentence_ends` (token ids) is the last of its sentence.
    """

    def __init__(self, sentence_ends: Collection[int], row_is_sentence: bool):
        self.ends = torch.tensor(sorted(sentence_ends), dtype=torch.long)
        self.row_is_sentence = row_is_sentence
        self.num_before = 0

    def of(self, tokens: torch.LongTensor, is_target: torch.BoolTensor) -> torch.LongTensor:
        """
        Return the positions in the sentence of the next batch's target tokens, `(num_targets,)`, row by row. Running
        text has to be passed in order, batch by batch.
        """
        if self.row_is_sentence:
            return is_target.cumsum(1)[is_target]
        running = tokens[is_target]
        numbers = torch.arange(len(running))
        # For each token, the index of the last sentence end up to it; negative if it is in an earlier batch.
        last_end = torch.where(torch.isin(running, self.ends), numbers, -1 - self.num_before).cummax(0).values
        before = torch.cat([torch.tensor([-1 - self.num_before]), last_end])
        self.num_before = len(running) - 1 - int(before[-1])
        return numbers - before[:-1]


class GainTally:
    """Sums of gains in bins. `firsts` are the bins' lower bounds, in ascending order; the last bin is open."""

    def __init__(self, firsts: Sequence[int]):
        self.firsts = firsts
        self.counts = torch.zeros(len(firsts), dtype=torch.long)
        self.sums, self.squares = torch.zeros(2, len(firsts), dtype=torch.double)

    def add(self, gains: torch.Tensor, values: torch.LongTensor) -> None:
        """
        Add each gain (NLL without the ensemble minus NLL with it) to the bin of its value, a position or a count. Both
        have one entry per token.
        """
        bins = torch.bucketize(values, torch.tensor(self.firsts[1:], dtype=values.dtype), right=True)
        self.counts += torch.bincount(bins, minlength=len(self.firsts))
        self.sums.index_add_(0, bins, gains)
        self.squares.index_add_(0, bins, gains**2)

    def bins(self) -> list[GainBin]:
        """Return mean and standard error of each bin that is not empty, in ascending order."""
        bins = []
        for i, (first, end) in enumerate(itertools.zip_longest(self.firsts, self.firsts[1:])):
            count = int(self.counts[i])
            if not count:
                continue
            mean = float(self.sums[i]) / count
            variance = max(float(self.squares[i]) - count * mean**2, 0.0) / (count - 1) if count > 1 else math.nan
            bins.append(GainBin(_label(first, end), count, mean, math.sqrt(variance / count)))
        return bins


def _label(first: int, end: int | None) -> str:
    if end is None:
        return f"{first:,}+"
    return f"{first:,}" if end == first + 1 else f"{first:,}–{end - 1:,}"
