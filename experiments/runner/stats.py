"""Means, standard deviations, and paired differences with an interval."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

from scipy.stats import t

CONFIDENCE = 0.95

# A figure by seed.
Values = Mapping[int, float]


class Summary(NamedTuple):
    """The mean over seeds, the sample standard deviation (`None` for one seed), and the number of seeds."""

    mean: float
    deviation: float | None
    count: int

    def text(self, digits: int = 2) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


class Difference(NamedTuple):
    """The mean of paired differences with its 95 % interval by Student's t; for one pair, no interval."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def text(self, digits: int = 2) -> str:
        interval = "" if self.low is None else f" [{signed(self.low, digits)}, {signed(self.high, digits)}]"
        return f"{signed(self.mean, digits)}{interval}"


def summarize(values: Sequence[float]) -> Summary:
    return Summary(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def interval(values: Sequence[float]) -> Difference:
    """Return the mean of values with its interval: mean ± t * standard deviation / √n."""
    summary = summarize(values)
    if summary.deviation is None:
        return Difference(summary.mean, None, None, 1)
    count = summary.count
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * summary.deviation / math.sqrt(count)
    return Difference(summary.mean, summary.mean - half, summary.mean + half, count)


def differences(values: Values, baseline: Values) -> dict[int, float]:
    """Return the differences of values to those of the same seed in `baseline`, for all common seeds."""
    return {seed: values[seed] - baseline[seed] for seed in sorted(values.keys() & baseline.keys())}


def paired(values: Values, baseline: Values) -> Difference | None:
    """Return the mean of these differences with its interval; `None` without a common seed."""
    found = differences(values, baseline)
    return interval([*found.values()]) if found else None


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign, with a minus of the width of the plus."""
    return f"{value:+.{digits}f}".replace("-", "−")
