"""How deep drafts go at given costs, and the costs that are derived from sizes."""

import itertools
import random

import pytest
import torch
from transformers import GenerationConfig

from ngram_wdr_hf.decoding.draft_depth import TRIAL_SHARE, Costs, DraftCosts, DraftDepth, DraftKind
from tests.support.tiny import SEQ2SEQ, model_of, tiny_model

UNSURE, HALF_SURE, SURE = map(DraftKind.of_head, (0.0, 0.5, 0.95))


class FixedCosts:
    """Costs of three heads, for any batch."""

    def __init__(self, head=0.05, checks=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5)):
        self.costs = Costs([head] * 3, list(checks))

    def at(self, num_rows, num_columns):
        return self.costs


def step(rule, kind, accepted, num_rows=1) -> tuple[int, float]:
    """Run a step without prompt lookup, with all drafts of one kind. Return the number of drafts, and their cost."""
    depth = num_run = 0
    rule.begin([100] * num_rows, 100)
    while depth < 3 and rule.runs_head([True] * num_rows):
        num_run += 1
        if not rule.drafts([kind] * num_rows):
            break
        depth += 1
    rule.learn([[kind] * depth] * num_rows, [min(accepted, depth)] * num_rows)
    return depth, sum(rule.costs.heads[:num_run]) + rule.costs.checks[depth]


def test_depth_goes_down_and_up():
    rule = DraftDepth(FixedCosts())
    wrong = [step(rule, HALF_SURE, 0)[0] for _ in range(200)]
    assert wrong[0] > 0 and 0 < sum(depth > 0 for depth in wrong[100:]) < 10
    assert [step(rule, SURE, 3)[0] for _ in range(2000)][-100:] == [3] * 100


@pytest.mark.parametrize("kind", [UNSURE, HALF_SURE, SURE])
@pytest.mark.parametrize("head", [0.005, 0.05, 0.2, 0.6])
@pytest.mark.parametrize("check", [0.005, 0.1, 0.5])
def test_useless_heads_cost_little(kind, head, check):
    """Drafts that are never accepted cost the time of trials, and a little at the start."""
    rule = DraftDepth(FixedCosts(head, [0.0, check, 2 * check, 3 * check]))
    spent = [step(rule, kind, 0)[1] for _ in range(1064)]
    assert sum(spent[:64]) < 2
    assert TRIAL_SHARE / 2 < sum(spent[64:]) / 1000 < TRIAL_SHARE * 1.1


@pytest.mark.parametrize("rates", [(0.1, 0.1, 0.1), (0.4, 0.4, 0.4), (0.8, 0.7, 0.6), (0.9, 0.9, 0.05)])
@pytest.mark.parametrize("checks", [(0, 0.1, 0.2, 0.3), (0, 0.2, 0.4, 0.6), (0, 0.05, 0.4, 0.8)])
def test_close_to_the_best_fixed_depth(rates, checks):
    """Per forward pass, drafts gain as much as the best fixed number of them, less the trials."""
    generator, head, num_steps = random.Random(0), 0.05, 3000

    def value_of(depth):
        return sum(itertools.accumulate(rates[:depth], lambda a, b: a * b)) - depth * head - checks[depth]

    rule, total = DraftDepth(FixedCosts(head, checks)), 0.0
    for _ in range(num_steps):
        outcomes = [generator.random() < rate for rate in rates]
        accepted = next((i for i, is_accepted in enumerate(outcomes) if not is_accepted), 3)
        depth, cost = step(rule, HALF_SURE, accepted)
        total += min(accepted, depth) - cost
    # All heads have the same confidence here, so the later depths are judged by the rate of all.
    assert total / num_steps > max(map(value_of, range(4))) - 0.04


def test_expensive_heads_are_tried():
    """Without trials, heads that are always right would never be used."""
    rule = DraftDepth(FixedCosts(0.4, (0, 0.1, 0.2, 0.3)))
    depths = [step(rule, SURE, 3, num_rows=8)[0] for _ in range(3000)]
    assert depths[:50] == [0] * 50 and depths[-100:] == [3] * 100


def test_copies():
    """Prompt lookup drafts even if heads had no gain. Useless copies are given up, too."""
    rule, copies = DraftDepth(FixedCosts()), [DraftKind.of_lookup(1 + depth) for depth in range(5)]
    for _ in range(100):
        step(rule, UNSURE, 0)
    depths = []
    for _ in range(200):
        rule.begin([100], 100)
        assert rule.prefers_lookup(3) or rule.is_trial
        depths.append(next((depth for depth, kind in enumerate(copies) if not rule.drafts([kind])), 5))
        rule.learn([copies[: depths[-1]]], [0])
    assert depths[0] > 2 and sum(depth > 0 for depth in depths[20:]) < 0.1 * 180


def test_nothing_is_learned_of_drafts_after_a_wrong_one():
    first, second, third, copy = *map(DraftKind.of_head, (0.3, 0.6, 0.95)), DraftKind.of_lookup(2)
    rule = DraftDepth(FixedCosts())
    rule.begin([10, 10], 10)
    rule.learn([[first, second, third], [copy, None, None]], [1, 3])
    wrong = {second, DraftKind("depth", 1)}
    assert rule.counts.keys() == {first, copy, DraftKind("depth", 0), *wrong}
    for kind in rule.counts:
        assert (rule.rate(kind) < kind.prior()) == (kind in wrong)


def test_rows_with_more_tokens_left_have_more_weight():
    rule = DraftDepth(FixedCosts(checks=(0, 0.75, 1.5, 2.25)))
    for kinds, is_worth_it in (([SURE, UNSURE], True), ([UNSURE, SURE], False)):
        rule.begin([40, 10], 10)
        assert rule.drafts(kinds) == is_worth_it
    # A finished row does not count.
    rule.begin([40, 0], 10)
    assert rule.chances == [1.0, 0.0]


def test_priors():
    for kinds in ([DraftKind.of_head(c / 10) for c in range(10)], [DraftKind.of_lookup(n) for n in range(1, 7)]):
        priors = [kind.prior() for kind in kinds]
        assert priors == sorted(priors) and 0 < priors[0] < priors[-1] < 1


SMALL = {"vocab_size": 2048, "n_embd": 128, "n_layer": 4, "n_head": 4}


def large_model():
    """A model without memory for its weights, as costs depend on their shapes only."""
    sizes = {"vocab_size": 49152, "n_embd": 576, "n_layer": 30, "n_head": 9}
    with torch.device("meta"):
        return tiny_model(**sizes, ngram_target="simple", ngram_head_reads="hidden+tokens")


def costs_of(model, draft_vocab_size=None, device="cpu", **options) -> DraftCosts:
    config = GenerationConfig(**{"do_sample": False, **options})
    costs = DraftCosts(model, config, model.ngram_head_list, 8, draft_vocab_size or model.ngram_vocab_size)
    costs.device = device
    return costs


def test_bytes_that_are_read():
    """One vector of each embedding table, the whole output embedding, tied or not, and no encoder."""
    d, layer = 128, 12 * 128**2 + 13 * 128
    for is_tied in (True, False):
        costs = costs_of(tiny_model(**SMALL, ngram_size=4, tie_word_embeddings=is_tied), draft_vocab_size=512)
        assert costs.forward_bytes == 4 * (4 * layer + 2 * d + 2048 * d)
        assert costs.num_calls == 8 and costs.head_bytes == [4 * (2 * d * d + 2 * d + 512 * d)] * 3
    for name in SEQ2SEQ:
        model = model_of(name)
        decoder = sum(p.numel() for n, p in model.get_decoder().named_parameters() if "embed" not in n)
        output = model.get_output_embeddings().weight.numel()
        assert costs_of(model).forward_bytes == pytest.approx(8 * (decoder + output), rel=0.05)


def test_costs_grow_with_sizes():
    small, large = tiny_model(**SMALL), large_model()
    costs, fewer = costs_of(large).at(1, 0), costs_of(large, draft_vocab_size=3000).at(1, 0)
    # A larger model pays less for its heads; with a shortlist, any model does.
    assert fewer.heads[0] < costs.heads[0] < costs_of(small).at(1, 0).heads[0]
    assert fewer.checks == costs.checks and fewer.heads[0] < fewer.heads[1] < fewer.heads[2]
    # One token takes as long as two, but for the work around them.
    assert costs.checks[0] == 0 < costs.checks[1] < 0.02 < costs.checks[2] < costs.checks[3]
    assert costs.checks[3] < costs_of(large).at(8, 0).checks[3] < 3
    # Rows are shifted in the cache, the more expensive the longer the text.
    batch = costs_of(large)
    batch.cache_bytes = 30 * 2 * 192 * 4
    assert batch.at(8, 500).checks[1] > batch.at(8, 0).checks[1] and batch.at(8, 500) is batch.at(8, 501)
    sampling, sorting = (costs_of(large, do_sample=True, **options).at(1, 0) for options in ({}, {"top_p": 0.9}))
    assert costs.heads[0] < sampling.heads[0] < sorting.heads[0]
    assert costs.checks[1] < sampling.checks[1] < sorting.checks[1]
    # On an accelerator, a pass over a few tokens costs hardly more than one.
    assert DraftCosts(large, GenerationConfig(), [], 8, 6000).device == "other"
    assert costs_of(large, 6000, "other").at(1, 0).checks[8] < 0.05


def test_given_costs():
    tiny = tiny_model()
    costs = DraftCosts(tiny, GenerationConfig(), tiny.ngram_head_list[:2], 4, 10, threshold=0.5).at(3, 100)
    assert costs == ([0.25, 0.25], [0, 0.25, 0.5, 0.75, 1.0])
    # Drafts that cost nothing are made however often they were wrong; those of a whole forward pass are not.
    for threshold, depth in ((0.0, 3), (1.0, 0)):
        rule = DraftDepth(DraftCosts(tiny, GenerationConfig(), tiny.ngram_head_list, 8, 10, threshold=threshold))
        assert [step(rule, UNSURE, 0)[0] for _ in range(100)] == [depth] * 100
