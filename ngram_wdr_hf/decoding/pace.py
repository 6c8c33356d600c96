"""How deep to draft: as long as a draft saves more than it costs."""

import bisect
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class DraftKind(NamedTuple):
    """
    Class of drafts with similar acceptance rates. A head's drafts are grouped by the head's confidence (an interval of
    `HEAD_LEVELS`), prompt lookup's drafts by the length of the match. A higher `level` is more likely to be accepted.
    """

    is_lookup: bool
    level: int

    @classmethod
    def of_head(cls, confidence: float) -> "DraftKind":
        """Return the kind of a head's draft, given the probability of the head's best token."""
        return cls(False, bisect.bisect(HEAD_LEVELS, confidence))

    @classmethod
    def of_lookup(cls, match_length: int) -> "DraftKind":
        """Return the kind of a copied draft, given how many tokens before it match; it must be at least 1."""
        return cls(True, min(match_length, len(LOOKUP_PRIORS)) - 1)


# Confidences that separate the kinds of heads' drafts.
HEAD_LEVELS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
# Prior acceptance rates of prompt lookup, for matches of 1, 2, ... tokens.
LOOKUP_PRIORS = (0.3, 0.5, 0.65, 0.75, 0.8, 0.85)


class DraftPace:
    r"""
    Decides how deep to draft. It learns the acceptance rate of each kind of draft. A head is run if the expected gain
    exceeds the cost of running it, a draft is made if the expected gain exceeds the cost of checking it, both on
    average over the rows. Heads without gain are tried again only now and then.

    It uses no clock and starts anew with every call of `generate`, so the same random numbers give the same text.

    Args:
        threshold (`float`, *optional*):
            Cost of a head's draft as a share of a forward pass: `HEAD_SHARE` of it for running the head, the rest for
            checking the draft. By default, both costs are measured constants, and the cost of checking grows with the
            number of rows.
        free_tokens (`int`): About how many tokens a forward pass reads in twice the time of one token.
        samples (`bool`): Whether tokens are sampled, which makes drafts more expensive.
    """

    # Costs, as shares of a forward pass.
    HEAD_COST = 0.14  # running a head in greedy search
    HEAD_COST_SAMPLING = 0.45  # running a head in sampling
    CHECK_COST = 0.05  # checking a draft
    FIRST_CHECK_COST = 0.12  # additional cost of the first draft of a step
    RAGGED_COST = 0.15  # shifting rows in the cache if they accept different numbers of drafts
    HEAD_SHARE = 0.6  # share of a given `threshold` that is the cost of running the head

    MAX_COUNT = 200  # number of drafts of a kind after which its counts are halved
    PRIOR_WEIGHT = 4.0  # weight of the prior acceptance rate, in drafts
    SKIP_DECAY = 0.02  # decay of the counts of a kind whenever one of its drafts is skipped
    HEAD_PRIOR = 0.3  # prior acceptance rate of a head
    WINDOW = 8  # averaging window of the heads' acceptance rates (in drafts) and of their gain (in steps)
    MIN_GAIN = 0.05  # accepted drafts per row and step below which heads are paused
    PAUSE = 16  # number of steps of a pause
    FIRST_TRIALS = 2  # number of steps at the start that run the first head at any cost
    TRIAL_INTERVAL = 32  # interval, in steps with heads, at which all heads run at any cost
    URGENCY = 4  # exponent of a row's weight by its number of remaining tokens

    def __init__(self, threshold: float | None, free_tokens: int, samples: bool):
        self.threshold = threshold
        self.free_tokens = free_tokens
        self.samples = samples
        self.num_checked: dict[DraftKind, float] = defaultdict(float)
        self.num_accepted: dict[DraftKind, float] = defaultdict(float)
        # Acceptance rate of the heads' drafts at each depth, given that all drafts before are accepted.
        self.head_rates: dict[int, float] = defaultdict(lambda: self.HEAD_PRIOR)
        self.num_checked_at: dict[int, int] = defaultdict(int)
        # Average number of accepted drafts per row in steps with heads.
        self.gain = 5 * self.MIN_GAIN
        self.num_paused = self.num_head_steps = 0
        self.has_run_heads = self.is_trial = self.is_deep_trial = False
        self.expected: list[float] = []
        self.depth = 0

    def begin(self, tokens_left: Sequence[int]) -> None:
        """
        Begin a step at depth 0. `tokens_left` is the number of tokens that each row can still get: rows with more of
        them weigh more in this step's decisions.
        """
        # The row with the most tokens left decides when the batch is finished. The mean weight is 1.
        most = max(tokens_left)
        weights = [(left / most) ** self.URGENCY for left in tokens_left]
        share = len(weights) / sum(weights)
        self.expected = [weight * share for weight in weights]
        self.depth = 0
        self.has_run_heads = self.is_trial = self.is_deep_trial = False

    def prefers_lookup(self, kind: DraftKind) -> bool:
        """
        Return whether a copied draft of this kind is at least as likely to be accepted as the first head's draft.
        """
        return self.acceptance_rate(kind) >= self.head_rates[0]

    def should_run_head(self, kinds: Sequence[DraftKind | None]) -> bool:
        """
        Return whether to run the head of the current depth. It would draft for the rows with kind `None`; all other
        rows have a copied draft of the given kind.
        """
        if self.depth == 0 and not self._considers_heads():
            return False
        expected = sum(e for e, kind in zip(self.expected, kinds, strict=True) if kind is None)
        cost = self._head_cost() + self._check_cost(len(kinds)) / 2
        is_trial = self.is_deep_trial if self.depth else self.is_trial
        runs_head = is_trial or expected * self.head_rates[self.depth] >= cost * len(kinds)
        self.has_run_heads |= runs_head
        return runs_head

    def _considers_heads(self) -> bool:
        """
        Return whether heads may draft in this step: not in the pauses of heads with too little gain. Also decide
        whether the step is a trial, which runs heads at any cost.
        """
        pays = self.gain >= self.MIN_GAIN or self.threshold == 0
        if not pays and self.num_paused < self.PAUSE:
            self.num_paused += 1
            return False
        self.num_paused = 0
        # Without trials, the acceptance rate of heads that seem too expensive would stay unknown.
        self.is_deep_trial = self.num_head_steps % self.TRIAL_INTERVAL == 0
        self.is_trial = not pays or self.num_head_steps < self.FIRST_TRIALS or self.is_deep_trial
        self.num_head_steps += 1
        return True

    def should_draft(self, kinds: Sequence[DraftKind | None]) -> bool:
        """
        Return whether to make the drafts of the current depth, given their kinds (`None` for a row without one). If
        so, move on to the next depth. If not, these kinds lose a little of what was learned about them.
        """
        expected = [
            e * self.acceptance_rate(kind) if kind else 0.0 for e, kind in zip(self.expected, kinds, strict=True)
        ]
        if sum(expected) < self._check_cost(len(kinds)) * len(kinds):
            for kind in filter(None, kinds):
                self.num_checked[kind] *= 1 - self.SKIP_DECAY
                self.num_accepted[kind] *= 1 - self.SKIP_DECAY
            return False
        self.expected = expected
        self.depth += 1
        return True

    def learn(self, kinds: Sequence[Sequence[DraftKind | None]], num_accepted: Sequence[int]) -> None:
        """
        Update the acceptance rates and the heads' gain after a step. In row i, the first `num_accepted[i]` drafts of
        `kinds[i]` were accepted, and the next, if any, was rejected.
        """
        num_head_drafts_accepted = 0
        for row, accepted in zip(kinds, num_accepted, strict=True):
            # Drafts after a rejected one tell nothing.
            for depth, kind in enumerate(row[: accepted + 1]):
                if kind is None:
                    break
                is_accepted = depth < accepted
                self.num_checked[kind] += 1
                self.num_accepted[kind] += is_accepted
                if self.num_checked[kind] > self.MAX_COUNT:
                    self.num_checked[kind] /= 2
                    self.num_accepted[kind] /= 2
                if not kind.is_lookup:
                    self.num_checked_at[depth] += 1
                    weight = 1 / min(self.num_checked_at[depth] + 1, self.WINDOW)
                    self.head_rates[depth] += (is_accepted - self.head_rates[depth]) * weight
                    num_head_drafts_accepted += is_accepted
        if self.has_run_heads:
            self.gain += (num_head_drafts_accepted / len(num_accepted) - self.gain) / self.WINDOW

    def _head_cost(self) -> float:
        """Return the cost of running a head, as a share of a forward pass."""
        if self.threshold is not None:
            return self.HEAD_SHARE * self.threshold
        return self.HEAD_COST_SAMPLING if self.samples else self.HEAD_COST

    def _check_cost(self, num_rows: int) -> float:
        """Return the cost of checking one more draft in each of `num_rows` rows, as a share of a forward pass."""
        if self.threshold is not None:
            return (1 - self.HEAD_SHARE) * self.threshold
        cost = self.CHECK_COST + num_rows / (num_rows + self.free_tokens)
        if self.depth == 0:
            cost += self.FIRST_CHECK_COST + (self.RAGGED_COST if num_rows > 1 else 0.0)
        return cost

    def acceptance_rate(self, kind: DraftKind) -> float:
        """
        Return the estimated acceptance rate of drafts of this kind: that of the drafts so far, mixed with a prior.
        """
        if kind.is_lookup:
            # Sampled text repeats itself less.
            prior = LOOKUP_PRIORS[kind.level] / (2 if self.samples else 1)
        else:
            # Heads are accepted more often than their confidence suggests.
            prior = (HEAD_LEVELS[kind.level] if kind.level < len(HEAD_LEVELS) else 1.0) ** 0.5
        return (self.num_accepted[kind] + self.PRIOR_WEIGHT * prior) / (self.num_checked[kind] + self.PRIOR_WEIGHT)
