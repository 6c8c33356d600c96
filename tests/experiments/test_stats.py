"""Statistics against values computed by hand."""

import pytest
from runner.stats import interval, paired, signed, summarize


def test_mean_deviation_and_interval():
    # The squares of the deviations, 4 + 0 + 4, divided by 2.
    assert summarize([1.0, 3.0, 5.0]) == (3.0, 2.0, 3) and summarize([1.0, 3.0, 5.0]).text() == "3.00 ± 2.00"
    # Student's t of 97.5 % is 4.3027 for 2 degrees of freedom, and 12.7062 for 1.
    mean, low, high, count = interval([1.0, 3.0, 5.0])
    assert (mean, count) == (3.0, 3)
    assert (low, high) == pytest.approx((3 - 4.30265 * 2 / 3**0.5, 3 + 4.30265 * 2 / 3**0.5), abs=1e-4)
    # The deviation of 0 and 2 is √2, and √2 / √2 = 1.
    assert interval([0.0, 2.0])[1:3] == pytest.approx((1 - 12.7062, 1 + 12.7062), abs=1e-3)
    # One value has neither.
    assert summarize([2.5]) == (2.5, None, 1) and summarize([2.5]).text(1) == "2.5"
    assert interval([2.5]) == (2.5, None, None, 1) and interval([-2.5]).text() == "−2.50"
    assert [signed(value, 1) for value in (1.0, -1.0, 0.0)] == ["+1.0", "−1.0", "+0.0"]


def test_differences_are_paired_by_seed():
    values, baseline = {3: 12.0, 1: 10.0, 4: 99.0}, {1: 11.0, 2: 0.0, 3: 15.0}
    # -1 and -3: mean -2, deviation √2.
    difference = paired(values, baseline)
    assert (difference.mean, difference.count) == (-2.0, 2)
    assert difference.low == pytest.approx(-2 - 12.7062, abs=1e-3)
    assert difference.text(1) == "−2.0 [−14.7, +10.7]"
    assert paired(values, {2: 1.0}) is None
