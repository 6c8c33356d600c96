"""Exact scores: every token of a text is a target once, and the perplexity equals a slow loop."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from ngram_wdr_hf import fit_ensemble
from ngram_wdr_hf.data.pair_batches import PairBatches
from ngram_wdr_hf.data.token_stream import EvaluationWindows
from ngram_wdr_hf.evaluation.scores import score
from ngram_wdr_hf.method.documents import IGNORE_INDEX
from tests.support.errors import raises_naming
from tests.support.pairs import PAD, pairs_of, random_lengths, tokens_of
from tests.support.reference import ensembled_logits, head_prediction
from tests.support.texts import START, stream_of
from tests.support.tiny import random_ids, tiny_model, tiny_seq2seq


def contexts(text: list[int], window_size: int, stride: int) -> Iterator[tuple[list[int], int]]:
    """Yield each target of a text with the tokens it is predicted from, as many as fit into the window."""
    for k, target in enumerate(text[1:]):
        window = 0 if k < window_size else (k - window_size) // stride + 1
        yield text[max(0, min(window * stride, len(text) - 1 - window_size)) : k + 1], target


@pytest.mark.parametrize("start", [None, START])
@pytest.mark.parametrize("window_size", range(1, 7))
def test_every_token_is_a_target_once(window_size, start):
    for length in range(20):
        tokens = list(range(100, 100 + length))
        text = [start, *tokens] if start is not None else tokens
        for stride in (None, *range(1, window_size + 2)):
            windows, found = EvaluationWindows(stream_of(tokens), window_size, stride, start), []
            for window in windows:
                ids, targets = window["input_ids"].tolist(), window["shift_labels"].tolist()
                assert len(ids) == len(targets) == min(window_size, len(text) - 1)
                found += [(ids[: t + 1], target) for t, target in enumerate(targets) if target != IGNORE_INDEX]
            step = min(stride or window_size, window_size)
            assert found == [*contexts(text, window_size, step)] and windows.num_targets == len(found)
            # No window without targets.
            assert len([*windows]) == len(windows) == -(-max(len(found) - window_size, 0) // step) + bool(found)


LAMBDAS = [0.0, 0.3, 1.0]


@torch.no_grad()
def slow_scores(model, text: list[int], window_size: int, stride: int):
    """Return the NLL of the text for each λ, and the mean NLL of each depth, one target at a time."""
    nlls, head_nlls = [0.0] * len(LAMBDAS), [[] for _ in range(model.config.ngram_size)]
    for context, target in contexts(text, window_size, stride):
        context, target = torch.tensor([context]), torch.tensor(target)
        for i, value in enumerate(LAMBDAS):
            nlls[i] += F.cross_entropy(ensembled_logits(model, context, value)[0, -1], target).item()
        hidden = model.transformer(context).last_hidden_state
        for n in range(min(model.config.ngram_size, context.shape[1])):
            t = context.shape[1] - 1 - n
            prediction = head_prediction(model, hidden, context, 0, t, n) if n else hidden[0, t]
            head_nlls[n].append(F.cross_entropy(model.lm_head(prediction), target).item())
    return nlls, [sum(head) / len(head) if head else None for head in head_nlls]


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize(
    ("length", "window_size", "stride", "start"),
    [(17, 6, 1, START), (17, 6, 4, None), (17, 6, 6, START), (17, 2, 1, START), (1, 50, 7, START), (9, 50, 7, START)],
)
def test_windows_equal_a_loop_over_targets(target, length, window_size, stride, start):
    model = tiny_model(torch.float64, ngram_target=target)
    tokens = random_ids(1, length)[0].tolist()
    scores = score(model, EvaluationWindows(stream_of(tokens), window_size, stride, start), LAMBDAS, batch_size=3)
    text = [start, *tokens] if start is not None else tokens
    sums, head_nlls = slow_scores(model, text, window_size, stride)
    assert scores.nll_sums == pytest.approx(sums)
    assert [nll is None for nll in scores.head_nlls] == [nll is None for nll in head_nlls]
    assert [nll or 0.0 for nll in scores.head_nlls] == pytest.approx([nll or 0.0 for nll in head_nlls])
    assert scores.num_tokens == len(text) - 1 and scores.num_words == len(tokens)
    for unit, count in (("token", len(text) - 1), ("word", len(tokens))):
        perplexities = [math.exp(total / count) for total in sums]
        assert scores.by_lambda(unit) == pytest.approx(dict(zip(LAMBDAS, perplexities, strict=True)))
    assert scores.best_lambda == min(LAMBDAS, key=lambda value: sums[LAMBDAS.index(value)])


@pytest.mark.parametrize("batch_tokens", [1, 20, 100_000])
def test_batches_of_pairs_equal_single_pairs(batch_tokens):
    model = tiny_seq2seq("marian", torch.float64, ngram_size=3).train()
    # Some targets have a single token, and heads no targets there.
    pairs = tokens_of([*random_lengths(25, 9), (3, 1), (1, 1), (1, 2), (14, 3)])
    batches = PairBatches(pairs, batch_tokens, PAD)
    # `batch_size` has no effect here.
    scores = score(model, batches, LAMBDAS, batch_size=7)
    assert model.training
    sums, head_sums, counts = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    for source, target in pairs_of(pairs):
        with torch.no_grad():
            inputs = {"input_ids": torch.tensor([source]), "labels": torch.tensor([target])}
            output = model.eval()(**inputs, ensemble_lambda=LAMBDAS)
        count = torch.tensor([max(len(target) - n, 0) for n in range(3)])
        sums = sums + output.loss * len(target)
        head_sums, counts = head_sums + output.head_losses * count, counts + count
    assert scores.nll_sums == pytest.approx(sums.tolist(), rel=1e-9) and sums.max() - sums.min() > 1
    assert scores.head_nlls == pytest.approx((head_sums / counts).tolist(), rel=1e-6)
    assert (scores.num_tokens, scores.num_words) == (counts[0], batches.num_words)


@pytest.mark.parametrize("tokens", [[], [3]])
def test_text_without_targets(tokens):
    """No perplexity of 1."""
    text = EvaluationWindows(stream_of(tokens), 8)
    for measure in (lambda: score(tiny_model(), text, [0.0], 2), lambda: fit_ensemble(tiny_model(), text)):
        with raises_naming(ValueError, "`text`", "targets"):
            measure()
