"""How deep drafts go, at given prices."""

import itertools
import random

import pytest

from ngram_wdr_hf.decoding.pace import DraftKind, DraftPace, RunningMean
from ngram_wdr_hf.decoding.prices import PriceList, ThresholdPrices

UNSURE, SURE = DraftKind.of_head(0.0), DraftKind.of_head(0.95)


class FixedPrices:
    """Prices of three heads, for any batch."""

    def __init__(self, head=0.05, checks=(0.0, 0.3, 0.3, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)):
        self.price_list = PriceList([head] * 3, list(checks))

    def of(self, num_rows, num_columns):
        return self.price_list


def unknown(depth, num_rows=1, num_heads=3):
    return [[DraftKind.of_depth(d)] * num_rows for d in range(depth, num_heads)]


def one_step(pace, kind, accepted, num_rows=1, max_depth=3) -> int:
    """Run a step without prompt lookup, with all drafts of one kind, accepted or not; return its depth."""
    depth = 0
    pace.begin([100] * num_rows, 100)
    while depth < max_depth and pace.should_run_head(unknown(depth, num_rows)):
        kinds = [kind] * num_rows
        if not pace.should_draft([kinds, *unknown(depth + 1, num_rows)]):
            break
        pace.go_deeper(kinds)
        depth += 1
    pace.learn([[kind] * depth] * num_rows, [depth if accepted else 0] * num_rows)
    return depth


def steps_with_drafts(pace, outcomes, confidence=0.6):
    """Return the depth of each step of one row, whose drafts are accepted or not as in `outcomes`."""
    return [one_step(pace, DraftKind.of_head(confidence), accepted) for accepted in outcomes]


def test_pace_goes_down_and_up():
    pace = DraftPace(FixedPrices())
    wrong = steps_with_drafts(pace, [False] * 200)
    assert wrong[0] > 0
    # Still drafts now and then.
    assert 0 < sum(depth > 0 for depth in wrong[100:]) <= 100 / 8 + 1
    right = steps_with_drafts(pace, [True] * 400)
    assert right[-100:] == [3] * 100
    assert steps_with_drafts(DraftPace(FixedPrices()), [True] * 50, confidence=0.95)[-40:] == [3] * 40


@pytest.mark.parametrize("num_steps", [64, 1000])
@pytest.mark.parametrize("kind", [UNSURE, DraftKind.of_head(0.5), SURE])
@pytest.mark.parametrize("head", [0.005, 0.05, 0.2, 0.6])
@pytest.mark.parametrize("check", [0.005, 0.1, 0.5])
def test_useless_drafts_cost_little(num_steps, kind, head, check):
    """At any price, drafts that are never accepted cost a small share of the time, and a little at the start."""
    prices = FixedPrices(head, [0.0, check, check * 1.1, check * 1.2])
    pace, spent = DraftPace(prices), 0.0
    for _ in range(num_steps):
        depth = one_step(pace, kind, accepted=False)
        # The head after the last draft was run as well, if there is one.
        spent += pace.has_run_heads * head * min(depth + 1, 3) + prices.price_list.checks[depth]
    # Heads that are unsure lose less before they are found useless; cheap ones are found useless later.
    at_first = {UNSURE: 2, SURE: 4.5}.get(kind, 4) + (num_steps > 64 and head < 0.01) * 4
    assert spent <= DraftPace.TRIAL_SHARE * num_steps + at_first
    assert num_steps < 1000 or spent > DraftPace.TRIAL_SHARE * num_steps / 2


@pytest.mark.parametrize("rates", [(0.1, 0.1, 0.1), (0.4, 0.4, 0.4), (0.8, 0.7, 0.6), (0.9, 0.9, 0.05)])
@pytest.mark.parametrize("checks", [(0, 0.1, 0.2, 0.3), (0, 0.4, 0.4, 0.4), (0, 0.05, 0.4, 0.8)])
def test_close_to_the_best_fixed_depth(rates, checks):
    """Per forward pass, the pace gains as much as the best fixed number of drafts, less the trials."""
    generator = random.Random(0)
    head, kind, num_steps = 0.05, DraftKind.of_head(0.5), 3000

    def value_of(depth):
        gain = sum(itertools.accumulate(rates[:depth], lambda a, b: a * b))
        return gain - depth * head - checks[depth]

    pace, total = DraftPace(FixedPrices(head, checks)), 0.0
    for _ in range(num_steps):
        pace.begin([100], 100)
        depth = num_run = 0
        while depth < 3 and pace.should_run_head(unknown(depth)):
            num_run += 1
            if not pace.should_draft([[kind], *unknown(depth + 1)]):
                break
            pace.go_deeper([kind])
            depth += 1
        outcomes = [generator.random() < rate for rate in rates[:depth]]
        accepted = next((i for i, is_accepted in enumerate(outcomes) if not is_accepted), depth)
        pace.learn([[kind] * depth], [accepted])
        total += accepted - num_run * head - checks[depth]
    best = max(map(value_of, range(4)))
    # All heads have the same confidence here, so the later depths are judged by the rate of all.
    assert total / num_steps > best - 0.08


def rate_of(value):
    """A rate that has been learned."""
    rate = RunningMean(0)
    rate.add(value)
    return rate


def test_drafts_that_pay_only_together():
    """The first draft costs more than it gains, but the next ones are free to check."""
    pace = DraftPace(FixedPrices(0.01, (0, 0.5, 0.5, 0.5)))
    kind = DraftKind.of_head(0.25)
    assert pace.acceptance_rate(kind) == pytest.approx(0.5)
    pace.rates[kind] = rate_of(0.45)
    pace.begin([10], 10)
    assert not pace.should_draft([[kind]])
    assert pace.should_draft([[kind], [DraftKind.of_depth(1)], [DraftKind.of_depth(2)]])
    pace = DraftPace(FixedPrices(0.01, (0, 0.5, 1.0, 1.5)))
    pace.rates[kind] = rate_of(0.45)
    pace.begin([10], 10)
    assert not pace.should_draft([[kind], [DraftKind.of_depth(1)], [DraftKind.of_depth(2)]])


def test_heads_without_gain_are_rarely_run():
    pace = DraftPace(FixedPrices())

    def steps_with_heads(num_steps):
        for _ in range(num_steps):
            one_step(pace, UNSURE, accepted=False)
            yield pace.has_run_heads

    assert list(steps_with_heads(100))[:4] == [True] * 4
    assert 0 < sum(steps_with_heads(100)) <= 100 / 16 + 1


def test_prompt_lookup_is_never_paused():
    """Prompt lookup drafts even if heads had no gain and there was no match for long."""
    pace, copy = DraftPace(FixedPrices()), DraftKind.of_lookup(3)
    for _ in range(100):
        one_step(pace, UNSURE, accepted=False)
    for _ in range(10):
        pace.begin([100], 100)
        assert pace.prefers_lookup(copy) and pace.should_draft([[copy]])
        pace.go_deeper([copy])
        pace.learn([[copy]], [1])


def test_useless_copies_cost_little():
    pace, copies = DraftPace(FixedPrices()), [[DraftKind.of_lookup(1 + depth)] for depth in range(8)]
    depths = []
    for _ in range(200):
        pace.begin([100], 100)
        depth = 0
        while depth < 8 and pace.should_draft(copies[depth:]):
            pace.go_deeper(copies[depth])
            depth += 1
        pace.learn([[kind for (kind,) in copies[:depth]]], [0])
        depths.append(depth)
    assert sum(depth > 0 for depth in depths[20:]) < 0.1 * 180


def test_pace_is_deterministic():
    outcomes = [i % 7 < 3 for i in range(100)]
    first, second = DraftPace(FixedPrices()), DraftPace(FixedPrices())
    assert steps_with_drafts(first, outcomes) == steps_with_drafts(second, outcomes)
    kinds = first.rates.keys()
    assert kinds == second.rates.keys()
    assert [first.acceptance_rate(kind) for kind in kinds] == [second.acceptance_rate(kind) for kind in kinds]
    assert first.gain_of_heads() == second.gain_of_heads()


def test_thresholds():
    # Drafts that cost nothing are made however often they were wrong.
    pace = DraftPace(ThresholdPrices(0.0, 3, 8))
    assert [one_step(pace, UNSURE, accepted=False) for _ in range(100)] == [3] * 100
    # One that costs a forward pass is left alone, unless the head is sure and has always been right.
    pace = DraftPace(ThresholdPrices(1.0, 3, 8))
    assert [one_step(pace, UNSURE, accepted=False) for _ in range(100)] == [0] * 100
    pace = DraftPace(ThresholdPrices(0.9, 3, 8))
    assert [one_step(pace, SURE, accepted=True) for _ in range(4000)][-50:] == [3] * 50
    pace = DraftPace(ThresholdPrices(0.5, 3, 8))
    assert [one_step(pace, SURE, accepted=True) for _ in range(200)][-50:] == [3] * 50


@pytest.mark.parametrize("num_rows", [1, 8, 16])
def test_expensive_heads_are_tried(num_rows):
    """Without trials, heads that are always right would never be used."""
    pace = DraftPace(FixedPrices(0.6, (0, 0.5, 1.0, 1.5)))
    depths = [one_step(pace, SURE, accepted=True, num_rows=num_rows) for _ in range(800)]
    assert max(depths) == 3
    # Three tokens for 3 * 0.6 + 1.5 forward passes do not pay, so these were trials.
    assert sum(depth == 3 for depth in depths) <= DraftPace.TRIAL_SHARE * 800 / 3.3 + 1
    pace = DraftPace(FixedPrices(0.6, (0, 0.2, 0.3, 0.4)))
    depths = [one_step(pace, SURE, accepted=True, num_rows=num_rows) for _ in range(2000)]
    assert depths[-100:] == [3] * 100


def test_nothing_is_learned_of_drafts_after_a_wrong_one():
    first, second, third = (DraftKind.of_head(confidence) for confidence in (0.3, 0.6, 0.95))
    pace = DraftPace(FixedPrices())
    pace.begin([10, 10], 10)
    pace.learn([[first, second, third], [DraftKind.of_lookup(2), None, None]], [1, 3])
    known = {first, second, DraftKind.of_lookup(2), DraftKind.of_depth(0), DraftKind.of_depth(1)}
    assert pace.rates.keys() == known
    for kind in known:
        is_accepted = kind not in (second, DraftKind.of_depth(1))
        assert (pace.acceptance_rate(kind) > kind.prior()) == is_accepted


def test_rows_with_more_tokens_left_have_more_weight():
    pace = DraftPace(ThresholdPrices(0.9, 3, 8))
    pace.begin([40, 10], 10)
    assert sum(pace.chances) == pytest.approx(1.0)
    assert pace.should_draft([[SURE, UNSURE]])
    pace.begin([40, 10], 10)
    assert not pace.should_draft([[UNSURE, SURE]])
    # A finished row does not count.
    pace.begin([40, 0], 10)
    assert pace.chances == [1.0, 0.0]


def test_kinds_of_drafts():
    assert [DraftKind.of_head(c).level for c in (0.0, 0.09, 0.3, 0.89, 0.9, 1.0)] == [0, 0, 3, 8, 9, 9]
    assert [DraftKind.of_lookup(length).level for length in (1, 3, 6, 20)] == [1, 3, 6, 6]
    assert len({DraftKind.of_lookup(1), DraftKind.of_head(0.1), DraftKind.of_depth(1)}) == 3
    for kinds in ([DraftKind.of_head(c / 10) for c in range(10)], [DraftKind.of_lookup(n) for n in range(1, 7)]):
        guesses = [kind.prior() for kind in kinds]
        assert guesses == sorted(guesses) and 0 < guesses[0] < guesses[-1] < 1


def test_running_mean():
    mean = RunningMean(2)
    assert mean.value(0.5) == 0.5
    mean.add(1)
    assert mean.value(0.5) == pytest.approx(2 / 3, abs=0.01)
    for _ in range(500):
        mean.add(0)
    assert 0 < mean.value(0.5) < 0.01
    for _ in range(64):
        mean.add(1)
    assert 0.5 < mean.value(0.5) < 0.8


def test_guesses_of_a_family_are_corrected_together():
    """Rejected drafts of one confidence lower the guesses of all others, but not those of prompt lookup."""
    pace, copied = DraftPace(FixedPrices()), DraftKind.of_lookup(3)
    before = pace.acceptance_rate(SURE)
    for _ in range(8):
        pace.learn([[DraftKind.of_head(0.6)]], [0])
    assert pace.acceptance_rate(SURE) < before / 4 and pace.acceptance_rate(copied) == copied.prior()
    for _ in range(100):
        pace.learn([[DraftKind.of_head(0.6)]], [1])
    assert before < pace.acceptance_rate(SURE) <= 1.0


def test_untrained_heads_are_given_up_soon():
    """Confident heads that are always wrong, each time with another confidence, are run in a few steps only."""
    pace = DraftPace(FixedPrices(0.03, (0.0, 0.0, 0.1, 0.2)))
    depths = [one_step(pace, DraftKind.of_head(0.35 + i % 7 / 10), accepted=False) for i in range(64)]
    assert sum(depth > 0 for depth in depths) < 20


def test_heads_that_do_not_pay_rest_until_the_next_trial():
    pace, prices = DraftPace(FixedPrices()), FixedPrices()
    while not pace.is_resting:
        one_step(pace, UNSURE, accepted=False)
    # A copy of any kind is better than no draft.
    assert pace.prefers_lookup(DraftKind.of_lookup(1))
    for _ in range(200):
        will_rest = pace.will_rest
        pace.begin([100], 100)
        assert pace.is_resting == will_rest != pace.is_trial
        if pace.is_trial:
            assert pace.should_run_head(unknown(0)) and not pace.is_resting
            pace.begin([100], 100)
            assert not pace.should_run_head(unknown(0)) and pace.is_resting
    # Other costs are a reason to look again.
    pace.prices = prices
    pace.begin([100], 100)
    assert not pace.is_resting


def test_no_heads_always_rest():
    pace = DraftPace(ThresholdPrices(0.5, 0, 8))
    pace.begin([100], 100)
    assert pace.will_rest and pace.prefers_lookup(DraftKind.of_lookup(1))
