"""How far to draft, so that drafts cost no more than they bring."""

import bisect
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class DraftKind(NamedTuple):
    """
    What is known of a draft before it is checked: a head's, and how sure the head was, in classes; or a copy, and how
    many tokens before it are the same as at the place it was copied from.
    """

    is_copy: bool
    level: int

    @classmethod
    def of_head(cls, confidence: float) -> "DraftKind":
        return cls(False, bisect.bisect(HEAD_LEVELS, confidence))

    @classmethod
    def of_copy(cls, match_length: int) -> "DraftKind":
        return cls(True, min(match_length, len(COPY_CHANCES)) - 1)


# What divides the heads' drafts into classes, and how often copies are right, before anything is known of them.
HEAD_LEVELS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
COPY_CHANCES = (0.3, 0.5, 0.65, 0.75, 0.8, 0.85)


class DraftPace:
    r"""
    Decides how far to draft, so that drafts cost no more than they bring: it learns how often drafts of each kind
    stand, asks a head if its draft is likely enough to be worth the asking, and has a draft checked if the chance that
    it will stand, with all drafts before it, is worth the checking, on average over the rows. While heads bring
    nothing, they are tried again only now and then.

    It knows no clock and begins anew with every call of `generate`: the same random numbers give the same text.

    Args:
        threshold (`float`, *optional*):
            The price of a head's draft as a share of a forward pass, of which the larger part is for the asking. By
            default both are what was measured; what checking costs grows with the number of rows.
        free_tokens (`int`): About how many tokens a forward pass takes in for the price of two.
        samples (`bool`): Whether tokens are sampled, which makes drafts dearer.
    """

    # Shares of a forward pass: asking a head; checking a draft, the first one, and one that makes rows uneven.
    ASKING, ASKING_FOR_SAMPLES = 0.14, 0.45
    CHECKING, CHECKING_FIRST, UNEVENNESS = 0.05, 0.12, 0.15
    # Which part of a given price is for the asking.
    ASKING_PART = 0.6
    # How many drafts of a kind are remembered, how many the first guess is worth, what each one not made lets forget.
    MEMORY, PRIOR_WEIGHT, FORGOTTEN = 200, 4.0, 0.02
    # Of how many attempts chances and gains are averaged, below what gain heads are asked rarely, and how rarely; how
    # many steps, at first and then one of how many, ask them whatever they are thought to be worth.
    HORIZON, LEAST_GAIN, PAUSE, FIRST_TRIALS, TRIAL = 8, 0.05, 16, 2, 32
    # How often a head is right as a rule, and how much more rows count that are behind.
    HEAD_CHANCE, URGENCY = 0.3, 4

    def __init__(self, threshold: float | None, free_tokens: int, samples: bool):
        self.threshold = threshold
        self.free_tokens = free_tokens
        self.samples = samples
        self.num_tried: dict[DraftKind, float] = defaultdict(float)
        self.num_stood: dict[DraftKind, float] = defaultdict(float)
        # By depth, how often a head's draft stands if those before it do.
        self.head_chances: dict[int, float] = defaultdict(lambda: self.HEAD_CHANCE)
        self.num_judged: dict[int, int] = defaultdict(int)
        # How many drafts of heads stand in a row when they are asked.
        self.gain = 5 * self.LEAST_GAIN
        self.num_skipped = self.num_asked = 0
        self.has_asked = self.is_trial = self.is_deep_trial = False
        self.expected: list[float] = []
        self.depth = 0

    def begin(self, tokens_left: Sequence[int]) -> None:
        """Begins a step, for rows that can get so many more tokens."""
        # The row that is furthest behind decides when all are done. Together, the weights are worth one a row.
        most = max(tokens_left)
        weights = [(left / most) ** self.URGENCY for left in tokens_left]
        share = len(weights) / sum(weights)
        self.expected = [weight * share for weight in weights]
        self.depth = 0
        self.has_asked = self.is_trial = self.is_deep_trial = False

    def prefers_copy(self, kind: DraftKind) -> bool:
        """Whether a copy of this kind is likelier to stand than what a head would say."""
        return self.chance(kind) >= self.head_chances[0]

    def asks_heads(self, kinds: Sequence[DraftKind | None]) -> bool:
        """Whether to let the heads speak at this depth, for the rows without a draft of another kind."""
        if self.depth == 0 and not self._tries_heads():
            return False
        expected = sum(e for e, kind in zip(self.expected, kinds, strict=True) if kind is None)
        price = self._asking() + self._checking(len(kinds)) / 2
        is_trial = self.is_deep_trial if self.depth else self.is_trial
        asks = is_trial or expected * self.head_chances[self.depth] >= price * len(kinds)
        self.has_asked |= asks
        return asks

    def _tries_heads(self) -> bool:
        """Whether heads come into question in this step."""
        pays = self.gain >= self.LEAST_GAIN or self.threshold == 0
        if not pays and self.num_skipped < self.PAUSE:
            self.num_skipped += 1
            return False
        self.num_skipped = 0
        # At first, and now and then, they are asked in any case: what they are worth is not known otherwise.
        self.is_deep_trial = self.num_asked % self.TRIAL == 0
        self.is_trial = not pays or self.num_asked < self.FIRST_TRIALS or self.is_deep_trial
        self.num_asked += 1
        return True

    def goes_on(self, kinds: Sequence[DraftKind | None]) -> bool:
        """Whether to make the next draft, of the given kind in each row (`None`: there is none)."""
        expected = [e * self.chance(kind) if kind else 0.0 for e, kind in zip(self.expected, kinds, strict=True)]
        if sum(expected) < self._checking(len(kinds)) * len(kinds):
            for kind in filter(None, kinds):
                self.num_tried[kind] *= 1 - self.FORGOTTEN
                self.num_stood[kind] *= 1 - self.FORGOTTEN
            return False
        self.expected = expected
        self.depth += 1
        return True

    def learn(self, kinds: Sequence[Sequence[DraftKind | None]], num_accepted: Sequence[int]) -> None:
        """Takes in how many drafts of each row stood, `num_accepted[i]` of those of kinds `kinds[i]`."""
        num_of_heads = 0
        for row, accepted in zip(kinds, num_accepted, strict=True):
            # Of the drafts after one that failed, nothing is learned.
            for depth, kind in enumerate(row[: accepted + 1]):
                if kind is None:
                    break
                stands = depth < accepted
                self.num_tried[kind] += 1
                self.num_stood[kind] += stands
                if self.num_tried[kind] > self.MEMORY:
                    self.num_tried[kind] /= 2
                    self.num_stood[kind] /= 2
                if not kind.is_copy:
                    self.num_judged[depth] += 1
                    weight = 1 / min(self.num_judged[depth] + 1, self.HORIZON)
                    self.head_chances[depth] += (stands - self.head_chances[depth]) * weight
                    num_of_heads += stands
        if self.has_asked:
            self.gain += (num_of_heads / len(num_accepted) - self.gain) / self.HORIZON

    def _asking(self) -> float:
        if self.threshold is not None:
            return self.ASKING_PART * self.threshold
        return self.ASKING_FOR_SAMPLES if self.samples else self.ASKING

    def _checking(self, num_rows: int) -> float:
        if self.threshold is not None:
            return (1 - self.ASKING_PART) * self.threshold
        price = self.CHECKING + num_rows / (num_rows + self.free_tokens)
        if self.depth == 0:
            price += self.CHECKING_FIRST + (self.UNEVENNESS if num_rows > 1 else 0.0)
        return price

    def chance(self, kind: DraftKind) -> float:
        """How likely a draft of this kind is to stand."""
        if kind.is_copy:
            # Where tokens are sampled, a text repeats itself less.
            prior = COPY_CHANCES[kind.level] / (2 if self.samples else 1)
        else:
            # Heads are right more often than they are sure.
            prior = (HEAD_LEVELS[kind.level] if kind.level < len(HEAD_LEVELS) else 1.0) ** 0.5
        return (self.num_stood[kind] + self.PRIOR_WEIGHT * prior) / (self.num_tried[kind] + self.PRIOR_WEIGHT)
