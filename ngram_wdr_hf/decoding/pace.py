"""How deep to draft: as long as another draft is expected to save more than it costs."""

from collections.abc import Sequence
from typing import NamedTuple

from .prices import DraftPrices, ThresholdPrices


class DraftKind(NamedTuple):
    """
    Class of drafts with similar acceptance rates. Prompt lookup's drafts are grouped by the length of the match, a
    head's by its confidence in tenths. Until the head has been run, they are grouped by depth.
    """

    source: str
    level: int

    @classmethod
    def of_lookup(cls, match_length: int) -> "DraftKind":
        """Return the kind of a copied draft, given how many tokens before it match; it must be at least 1."""
        return cls("lookup", min(match_length, LONGEST_MATCH))

    @classmethod
    def of_head(cls, confidence: float) -> "DraftKind":
        """Return the kind of a head's draft, given the probability of the head's best token."""
        return cls("head", min(int(confidence * 10), 9) if confidence > 0 else 0)

    @classmethod
    def of_depth(cls, depth: int) -> "DraftKind":
        """Return the kind of a draft whose head has not been run yet; depth 0 is the first head's."""
        return cls("unknown head", depth)

    @property
    def family(self) -> str:
        """What makes the drafts: kinds of one family are guessed too high or too low together."""
        return "lookup" if self.is_lookup else "heads"

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


# Longer matches than this are accepted equally often.
LONGEST_MATCH = 6


class RunningMean:
    """The mean of the numbers added, the last ones above all. A guess counts as `guess_weight` numbers at first."""

    # The weight of a number when another one is added: the mean is over about 64 of them.
    DECAY = 1 - 1 / 64

    def __init__(self, guess_weight: float):
        self.guess_weight = guess_weight
        self.total = self.weight = 0.0

    def add(self, number: float) -> None:
        self.guess_weight *= self.DECAY
        self.total = self.total * self.DECAY + number
        self.weight = self.weight * self.DECAY + 1

    def value(self, guess: float) -> float:
        return (self.total + guess * self.guess_weight) / (self.weight + self.guess_weight)


class Calibration:
    """How the guesses about drafts of one family fared: the ratio of accepted drafts to guessed ones, lately."""

    def __init__(self):
        # As if one draft had been guessed correctly.
        self.num_accepted = self.num_guessed = 1.0

    def add(self, is_accepted: bool, guess: float) -> None:
        self.num_accepted = self.num_accepted * RunningMean.DECAY + is_accepted
        self.num_guessed = self.num_guessed * RunningMean.DECAY + guess

    @property
    def factor(self) -> float:
        return self.num_accepted / self.num_guessed


class DraftPace:
    r"""
    Decides how deep to draft. Costs are shares of a forward pass, and an accepted draft saves one forward pass, so
    they can be compared:

    1. The first head is run if that is expected to pay. Its confidence is known only afterwards, so the expectation
       is over the confidences that it had so far. If it is not, the heads rest until the next trial.
    2. Another draft is made if, for some number of further drafts, the expected number of accepted ones exceeds the
       costs. The chance of a draft is the product of the acceptance rates up to it. Rates are learned by kind, and
       the guesses that they begin with are corrected by how such guesses fared.
    3. A step now and then is a trial, which drafts with all heads at any cost. Otherwise, what was once found too
       expensive would never be learned again. Trials take a fixed share of the time, `TRIAL_SHARE`.

    So drafts that are never accepted cost `TRIAL_SHARE` of the time, and at first what the guesses promise. There is
    no clock, and every call of `generate` starts anew: the same random numbers give the same text.

    Args:
        prices ([`DraftPrices`] or [`ThresholdPrices`]): The costs of heads and checks.
    """

    TRIAL_SHARE = 0.01
    # How many drafts a guess counts as: few, as a generation may be short.
    GUESS_WEIGHT = 2.0

    def __init__(self, prices: DraftPrices | ThresholdPrices):
        self.prices = prices
        self.rates: dict[DraftKind, RunningMean] = {}
        self.calibrations = {"lookup": Calibration(), "heads": Calibration()}
        # How often the first head's drafts were of each kind, lately.
        self.num_seen: dict[DraftKind, float] = {}
        self.costs = prices.of(1, 0)
        # What may be spent on trials.
        self.credit = 0.0
        self.is_trial = self.has_run_heads = False
        # Whether the heads were found not to pay at the current costs.
        self.is_resting = False
        # What all drafts so far cost.
        self.total_cost = 0.0
        # The drafts of the current step: their number, the chance of the last in each row, and what they are worth,
        # that is the expected number of accepted drafts per row.
        self.depth = 0
        self.chances: list[float] = []
        self.worth = 0.0

    def begin(self, tokens_left: Sequence[int], num_columns: int) -> None:
        """
        Begin a step at depth 0. `tokens_left` is the number of tokens that each row can still get, `num_columns` the
        number of tokens in the cache. Rows count in proportion to the tokens left, as the last row to finish
        determines the time.
        """
        scale = 1 / sum(tokens_left)
        self.chances = [left * scale for left in tokens_left]
        self.depth, self.worth = 0, 0.0
        self.has_run_heads = False
        costs = self.prices.of(len(tokens_left), num_columns)
        self.is_resting = self.is_resting and costs is self.costs
        self.costs = costs
        price = costs.all_heads
        self.credit = min(self.credit + self.TRIAL_SHARE, price)
        self.is_trial = self.credit >= price
        if self.is_trial:
            self.credit -= price
            self.is_resting = False

    @property
    def will_rest(self) -> bool:
        """Whether the heads will not be run in the next step either, if the costs stay the same."""
        if not self.costs.heads:
            return True
        return self.is_resting and self.credit + self.TRIAL_SHARE < self.costs.all_heads

    def prefers_lookup(self, kind: DraftKind) -> bool:
        """
        Return whether a copied draft of this kind is at least as likely to be accepted as the first head's, or the
        heads rest.
        """
        if self.is_resting or not self.costs.heads:
            return True
        return self.acceptance_rate(kind) >= self.acceptance_rate(DraftKind.of_depth(0))

    def should_run_head(self, ahead: Sequence[Sequence[DraftKind | None]]) -> bool:
        """
        Return whether to run the head of the current depth. `ahead` are the kinds of the drafts that can be made, by
        depth from the current one on; in each, one per row, `None` for a row without a draft.
        """
        if self.depth > 0:
            runs_head = self.should_draft(ahead)
        else:
            gain, price = self.gain_of_heads(), self.costs.heads[0]
            self.is_resting = gain < price and not self.is_trial
            share = sum(chance for chance, kind in zip(self.chances, ahead[0], strict=True) if not kind.is_lookup)
            runs_head = self.is_trial or share * gain >= price
        if runs_head:
            self.has_run_heads = True
            self.total_cost += self.costs.heads[self.depth]
        return runs_head

    def should_draft(self, ahead: Sequence[Sequence[DraftKind | None]]) -> bool:
        """
        Return whether to make the drafts of the current depth, because they or some after them pay. Arguments are as
        in `should_run_head`; the heads that have been run are paid for.
        """
        if self.depth == 0 and self.has_run_heads:
            self._count([kind for kind in ahead[0] if kind.source == "head"])
        if self.is_trial and self.depth < len(self.costs.heads):
            return True
        chances, worth = self.chances, self.worth
        enough = worth - self.costs.checks[self.depth]
        for depth, kinds in enumerate(ahead, start=self.depth):
            chances = self._chances_after(chances, kinds)
            worth += sum(chances)
            if any(kind is not None and kind.source == "unknown head" for kind in kinds):
                worth -= self.costs.heads[depth]
            if worth - self.costs.checks[depth + 1] >= enough:
                return True
        return False

    def go_deeper(self, kinds: Sequence[DraftKind | None]) -> None:
        """Count the drafts of these kinds, one per row, as made."""
        self.chances = self._chances_after(self.chances, kinds)
        self.worth += sum(self.chances)
        self.depth += 1
        self.total_cost += self.costs.checks[self.depth] - self.costs.checks[self.depth - 1]

    def learn(self, kinds: Sequence[Sequence[DraftKind | None]], num_accepted: Sequence[int]) -> None:
        """
        Update the acceptance rates after a step. In row i, the first `num_accepted[i]` drafts of
        `kinds[i]` were accepted, and the next, if any, was rejected.
        """
        for row, accepted in zip(kinds, num_accepted, strict=True):
            # Drafts after a rejected one tell nothing.
            for depth, kind in enumerate(row[: accepted + 1]):
                if kind is None:
                    break
                is_accepted = depth < accepted
                self.calibrations[kind.family].add(is_accepted, kind.prior())
                self._rate(kind).add(is_accepted)
                if not kind.is_lookup:
                    self._rate(DraftKind.of_depth(depth)).add(is_accepted)

    def gain_of_heads(self) -> float:
        """
        Return the expected gain of a step that runs the first head, in forward passes and without the cost of that
        head: the accepted drafts less the costs of checking them and of further heads.
        """
        # With the first draft's chance p, D drafts gain p * weight[D] - cost[D].
        weight, cost, chance = 1.0, 0.0, 1.0
        options = [(weight, self.costs.checks[1])]
        for depth, head in enumerate(self.costs.heads[1:], start=1):
            chance *= self.acceptance_rate(DraftKind.of_depth(depth))
            weight, cost = weight + chance, cost + head
            options.append((weight, cost + self.costs.checks[depth + 1]))
        total = number = 0.0
        # Before any confidence is known, the rate of all drafts of the first head is the best guess.
        for kind, count in [(DraftKind.of_depth(0), self.GUESS_WEIGHT), *self.num_seen.items()]:
            rate = self.acceptance_rate(kind)
            # Drafts that do not pay are not made.
            total += count * max(0.0, *(rate * weight - cost for weight, cost in options))
            number += count
        return total / number

    def _count(self, kinds: Sequence[DraftKind]) -> None:
        """Count the kinds of the first head's drafts in the rows of a step, together as one."""
        for kind in self.num_seen:
            self.num_seen[kind] *= RunningMean.DECAY
        for kind in kinds:
            self.num_seen[kind] = self.num_seen.get(kind, 0.0) + 1 / len(kinds)

    def acceptance_rate(self, kind: DraftKind) -> float:
        """Return the acceptance rate of drafts of this kind, given that all drafts before them are accepted."""
        return self._rate(kind).value(min(1.0, kind.prior() * self.calibrations[kind.family].factor))

    def _rate(self, kind: DraftKind) -> RunningMean:
        if kind not in self.rates:
            self.rates[kind] = RunningMean(self.GUESS_WEIGHT)
        return self.rates[kind]

    def _chances_after(self, chances: Sequence[float], kinds: Sequence[DraftKind | None]) -> list[float]:
        """Return the chance of the next draft in each row, 0 without one, given the chances of those before."""
        return [
            0.0 if kind is None else chance * self.acceptance_rate(kind)
            for chance, kind in zip(chances, kinds, strict=True)
        ]
