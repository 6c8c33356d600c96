"""Scores of sentence pairs, against a slow loop over single pairs."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset

from ngram_wdr_hf.data.pair_batches import PairBatches, side_lengths
from ngram_wdr_hf.evaluation.scores import score
from tests.support.pairs import PAD, pairs_of, random_lengths, tokens_of
from tests.support.reference import head_prediction, hidden_states, logits_of
from tests.support.tiny import tiny_seq2seq

LAMBDAS = [0.0, 0.3, 1.0]


@pytest.fixture(scope="module")
def pairs() -> Dataset:
    """Pairs, some with targets of a single token, for which heads have no targets."""
    return tokens_of([*random_lengths(25, 9), (3, 1), (1, 1), (1, 2), (14, 3)])


@torch.no_grad()
def slow_scores(model, tokens: Dataset):
    """Return the NLL of all targets for each λ, and the mean NLL of each depth, one pair at a time."""
    sums = [0.0] * len(LAMBDAS)
    head_nlls = [[] for _ in range(model.config.ngram_size)]
    for source, target in pairs_of(tokens):
        source, target = torch.tensor([source]), torch.tensor([target])
        for i, value in enumerate(LAMBDAS):
            loss = model(source, labels=target, ensemble_lambda=value).loss
            sums[i] += float(loss) * target.shape[1]
        decoder_ids = torch.cat([torch.tensor([[model.config.decoder_start_token_id]]), target], dim=1)
        hidden = hidden_states(model, decoder_ids[:, :-1], encoder_ids=source)
        for n in range(model.config.ngram_size):
            for t in range(target.shape[1] - n):
                state = hidden[0, t] if n == 0 else head_prediction(model, hidden, decoder_ids, 0, t, n)
                head_nlls[n].append(float(F.cross_entropy(logits_of(model, state), target[0, t + n])))
    return sums, [np.mean(nlls) for nlls in head_nlls]


@pytest.mark.parametrize("target", ["wdr", "simple"])
def test_scores_are_those_of_single_pairs(pairs, target):
    model = tiny_seq2seq("marian", torch.float64, ngram_size=3, ngram_target=target)
    sums, head_nlls = slow_scores(model, pairs)
    assert np.ptp(sums) > 1
    model.train()
    num_tokens = int(side_lengths(pairs)[:, 1].sum())
    for batch_tokens in (1, 20, 64, 100_000):
        batches = PairBatches(pairs, batch_tokens, PAD)
        calls = []
        # `batch_size` has no effect here.
        scores = score(model, batches, LAMBDAS, batch_size=7, on_batch=lambda calls=calls: calls.append(None))
        assert len(calls) == len(batches) and model.training
        assert scores.nll_sums == pytest.approx(sums, rel=1e-9)
        assert scores.head_nlls == pytest.approx(head_nlls, rel=1e-9)
        assert (scores.num_tokens, scores.num_words) == (num_tokens, batches.num_words)
        assert scores.perplexities() == pytest.approx([math.exp(total / num_tokens) for total in sums])
        words = batches.num_words
        assert scores.perplexities("word") == pytest.approx([math.exp(total / words) for total in sums])
        assert scores.best_lambda == LAMBDAS[int(np.argmin(sums))]
