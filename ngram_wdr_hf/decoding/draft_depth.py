"""How deep to draft: as long as another draft is expected to save more than it costs."""

from collections.abc import Sequence
from typing import NamedTuple

from .draft_costs import DraftCosts

# A rate is a mean over about the last 64 drafts of its kind; its prior counts as 2 drafts, as a generation may be
# short.
DECAY, PRIOR_WEIGHT = 1 - 1 / 64, 2.0
# The share of the time spent on trials, which draft with all heads at any cost. Otherwise, what was once found too
# expensive would never be learned again.
TRIAL_SHARE = 0.01


class DraftKind(NamedTuple):
    """
    Class of drafts with similar acceptance rates: by prompt lookup, by the length of the match (`"lookup"`); by a
    head, by its confidence in tenths (`"head"`), or by its depth before it is run (`"depth"`, 0 for the first head).
    """

    source: str
    level: int

    @classmethod
    def of_lookup(cls, match_length: int) -> "DraftKind":
        """Return the kind of a copy after a match of this length. Longer ones than 6 are accepted equally often."""
        return cls("lookup", min(match_length, 6))

    @classmethod
    def of_head(cls, confidence: float) -> "DraftKind":
        """Return the kind of a head's draft, given the probability of the head's best token."""
        return cls("head", min(int(confidence * 10), 9) if confidence > 0 else 0)

    @property
    def is_lookup(self) -> bool:
        return self.source == "lookup"

    def prior(self) -> float:
        """Return a guess of the acceptance rate, before any draft of this kind was checked."""
        if self.source == "lookup":
            # 0.3 for a match of one token, 0.88 for one of six: the usual rates in text that repeats itself.
            return 1 - 0.7**self.level
        if self.source == "head":
            # Heads are accepted more often than their confidence suggests.
            return ((self.level + 0.5) / 10) ** 0.5
        # Deeper drafts count only if those before them are accepted, which happens where the text is easy to predict.
        return 0.5 if self.level else 0.3


class DraftDepth:
    r"""
    Decides how deep to draft. Costs are shares of a forward pass, and an accepted draft saves one, so they can be
    compared: a head is run if the chance that its draft is accepted exceeds the cost of running it and of checking
    the draft; the draft is made if its chance, now that the head's confidence is known, exceeds the cost of checking
    it. A chance is the product of the acceptance rates up to it, learned by kind.

    So drafts that are never accepted cost `TRIAL_SHARE` of the time, and at first what the priors promise. There is
    no clock, and every call of `generate` starts anew: the same random numbers give the same text.

    `costs_of` are the [`DraftCosts`].
    """

    def __init__(self, costs_of: DraftCosts):
        self.costs_of = costs_of
        # By kind: the (decaying) numbers of accepted drafts and of all drafts.
        self.counts: dict[DraftKind, tuple[float, float]] = {}
        # What may be spent on trials.
        self.credit = 0.0

    def begin(self, tokens_left: Sequence[int], num_columns: int) -> None:
        """
        Begin a step with `num_columns` tokens in the cache. Rows count in proportion to the tokens that they can still
        get, as the last row to finish determines the time.
        """
        self.costs = self.costs_of.at(len(tokens_left), num_columns)
        self.depth = 0
        # The chance that all drafts so far are accepted, in each row.
        self.chances = [left / sum(tokens_left) for left in tokens_left]
        price = sum(self.costs.heads) + self.costs.checks[len(self.costs.heads)]
        self.credit = min(self.credit + TRIAL_SHARE, price)
        self.is_trial = self.credit >= price
        self.credit -= price * self.is_trial

    def prefers_lookup(self, match_length: int) -> bool:
        """Return whether a copy is more likely to be accepted than the first head's draft, or that does not pay."""
        if not self.costs.heads:
            return True
        rate = self.rate(DraftKind("depth", 0))
        is_worth_running = self.is_trial or rate >= self.costs.heads[0] + self._check_cost()
        return not is_worth_running or self.rate(DraftKind.of_lookup(match_length)) >= rate

    def runs_head(self, drafts_by_head: Sequence[bool]) -> bool:
        """Return whether to run the head of the current depth, given the rows that it would draft for."""
        chance = sum(chance for chance, by_head in zip(self.chances, drafts_by_head, strict=True) if by_head)
        rate = self.rate(DraftKind("depth", self.depth))
        return self.is_trial or chance * rate >= self.costs.heads[self.depth] + self._check_cost()

    def drafts(self, kinds: Sequence[DraftKind | None]) -> bool:
        """Return whether to make the drafts of the current depth, `None` for no draft. If so, go one deeper."""
        chances = [
            0.0 if kind is None else chance * self.rate(kind) for chance, kind in zip(self.chances, kinds, strict=True)
        ]
        if not any(kinds):
            return False
        if sum(chances) < self._check_cost() and not (self.is_trial and self.depth < len(self.costs.heads)):
            for kind in kinds:
                # A head that was run for nothing.
                if kind is not None and not kind.is_lookup:
                    self._count(DraftKind("depth", self.depth), False)
            return False
        self.chances, self.depth = chances, self.depth + 1
        return True

    def learn(self, kinds: Sequence[Sequence[DraftKind | None]], num_accepted: Sequence[int]) -> None:
        """Update the rates after a step, in which the first `num_accepted[i]` drafts of row i were accepted."""
        for row, accepted in zip(kinds, num_accepted, strict=True):
            # Drafts after a rejected one tell nothing.
            for depth, kind in enumerate(row[: accepted + 1]):
                if kind is None:
                    break
                self._count(kind, depth < accepted)
                if not kind.is_lookup:
                    self._count(DraftKind("depth", depth), depth < accepted)

    def rate(self, kind: DraftKind) -> float:
        """Return the acceptance rate of drafts of this kind, given that all drafts before them are accepted."""
        accepted, total = self.counts.get(kind, (0.0, 0.0))
        return (accepted + PRIOR_WEIGHT * kind.prior()) / (total + PRIOR_WEIGHT)

    def _check_cost(self) -> float:
        return self.costs.checks[self.depth + 1] - self.costs.checks[self.depth]

    def _count(self, kind: DraftKind, is_accepted: bool) -> None:
        accepted, total = self.counts.get(kind, (0.0, 0.0))
        self.counts[kind] = accepted * DECAY + is_accepted, total * DECAY + 1
