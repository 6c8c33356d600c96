"""What drafts gain, by counts and sizes."""

import numpy as np
import pytest
import torch

from ngram_wdr_hf.data.token_stream import TokenStream
from ngram_wdr_hf.decoding.drafter import Drafter
from ngram_wdr_hf.decoding.prices import DraftPrices
from ngram_wdr_hf.evaluation.drafting import (
    greedy_drafts,
    row_prompts,
    text_prompts,
)
from tests.support.tiny import model_of, random_ids, tiny_model

ENDLESS = {"eos_token_id": None, "bos_token_id": None}
PROMPTS = row_prompts(random_ids(3, 6))


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_counts_of_all_prompts_together(name):
    model = model_of(name)
    each = [greedy_drafts(model, [prompt], 20) for prompt in PROMPTS]
    together = greedy_drafts(model, PROMPTS, 20)
    for field in ("num_tokens", "num_forwards", "num_row_forwards", "num_copied", "num_copies_accepted"):
        assert getattr(together, field) == sum(getattr(statistics, field) for statistics in each)
    assert together.draft_cost == pytest.approx(sum(statistics.draft_cost for statistics in each))
    assert sum(together.num_drafted) == sum(sum(statistics.num_drafted) for statistics in each) > 0


def test_cost_is_that_of_the_heads_run_and_the_drafts_checked(monkeypatch):
    """Derived prices, step by step, for drafts by the heads and by prompt lookup."""
    # With many layers, heads are cheap.
    model, expected = tiny_model(torch.float64, **ENDLESS, n_layer=12), []
    draft = Drafter.draft

    def watched(self, text, *args):
        runs = []
        handles = [
            head.fc_out.register_forward_hook(lambda *_, n=n: runs.append(n)) for n, head in enumerate(self.heads)
        ]
        drafts = draft(self, text, *args)
        for handle in handles:
            handle.remove()
        prices = self.pace.prices.of(1, text.longest)
        assert isinstance(self.pace.prices, DraftPrices)
        expected.append(sum(prices.heads[n] for n in runs) + prices.checks[drafts.depth])
        return drafts

    monkeypatch.setattr(Drafter, "draft", watched)
    statistics = greedy_drafts(model, PROMPTS, 40)
    assert statistics.draft_cost == pytest.approx(sum(expected)) and statistics.draft_cost > 0
    assert 0 < statistics.num_copied < sum(statistics.num_drafted)
    cost = statistics.num_forwards + sum(expected)
    assert statistics.estimated_speedup == pytest.approx(statistics.num_tokens / cost)


def test_given_prices():
    model = tiny_model(torch.float64, **ENDLESS)
    free = greedy_drafts(model, PROMPTS, 40, draft_threshold=0.0)
    assert free.draft_cost == 0 and free.estimated_speedup == free.tokens_per_forward > 1
    # Half of the price for a head, half for the check.
    always = greedy_drafts(model, PROMPTS, 40, draft_threshold=1e-9, prompt_lookup_num_tokens=0)
    assert always.draft_cost == pytest.approx(1e-9 * sum(always.num_drafted))


def test_prompts_fit_into_the_model():
    stream = TokenStream(np.concatenate([np.arange(2, 30), np.arange(5, 37)]), num_words=60)
    model = tiny_model(n_positions=10)
    prompts = text_prompts(model, stream, 4)
    assert [prompt["input_ids"].shape for prompt in prompts] == [(1, 5)] * 4
    assert prompts[0]["input_ids"][0].tolist() == [2, 3, 4, 5, 6] and prompts[-1]["input_ids"][0, -1] == 36
    assert 0 < greedy_drafts(model, prompts, 48).num_tokens <= 4 * 5
    # A text with fewer tokens than prompts.
    assert len(text_prompts(tiny_model(), TokenStream(np.arange(2, 5), 3), 4)) == 1
