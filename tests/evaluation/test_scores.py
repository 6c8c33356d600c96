"""Exact scores: every token of a text is a target once, and the perplexity equals a slow loop."""

import math

import pytest
import torch
import torch.nn.functional as F

from ngram_wdr_hf import fit_ensemble
from ngram_wdr_hf.data.pair_batches import PairBatches
from ngram_wdr_hf.data.token_stream import EvaluationWindows, evaluation_windows
from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from ngram_wdr_hf.evaluation.scores import score
from ngram_wdr_hf.method.documents import IGNORE_INDEX
from tests.support.errors import raises_naming
from tests.support.pairs import PAD, pairs_of, random_lengths, tokens_of
from tests.support.reference import ensembled_logits, head_prediction
from tests.support.texts import START, TEXT, stream_of
from tests.support.tiny import random_ids, tiny_model, tiny_seq2seq


@pytest.mark.parametrize("start", [None, START])
@pytest.mark.parametrize("window_size", range(1, 7))
def test_every_token_is_a_target_once(window_size, start):
    """
    Target k < W is predicted from all k + 1 tokens before it. Later targets are predicted from their window, with at
    least W - stride + 1 tokens of context; exactly that many for the first target of a window, except the last window.
    """
    for length in range(20):
        tokens = list(range(100, 100 + length))
        text = [start, *tokens] if start is not None else tokens
        num_targets = max(len(text) - 1, 0)
        for stride in (None, *range(1, window_size + 2)):
            windows = EvaluationWindows(stream_of(tokens), window_size, stride, start)
            assert windows.num_targets == num_targets
            size = min(window_size, num_targets)
            step = size if stride is None else min(stride, size)
            scored = []
            for number, window in enumerate(windows):
                ids, targets = window["input_ids"].tolist(), window["shift_labels"].tolist()
                assert len(ids) == len(targets) == size
                begin = text.index(ids[0])
                assert ids == text[begin : begin + size]
                contexts = []
                for t, target in enumerate(targets):
                    if target != IGNORE_INDEX:
                        assert target == text[begin + t + 1]
                        contexts.append(t + 1)
                        scored.append(target)
                # The targets of a window are consecutive and end with the window.
                assert contexts == list(range(contexts[0], size + 1))
                if number == 0:
                    assert begin == 0 and contexts[0] == 1
                elif number < len(windows) - 1:
                    assert contexts[0] == size - step + 1
                else:
                    assert contexts[0] >= size - step + 1
            assert scored == text[1:]
            assert len(windows) == len(
                [k for k in range(num_targets) if k == 0 or (k >= size and (k - size) % step == 0)]
            )
            with pytest.raises(IndexError):
                windows[len(windows)]


def test_windows_begin_as_the_tokenizer_does():
    tokenizer = train_word_tokenizer([TEXT])
    assert evaluation_windows(stream_of([5, 6, 7]), tokenizer, 8, None)[0]["input_ids"].tolist() == [1, 5, 6]
    tokenizer.bos_token = "dog"
    bos = tokenizer.bos_token_id
    assert evaluation_windows(stream_of([5, 6, 7]), tokenizer, 8, 2)[0]["input_ids"].tolist() == [bos, 5, 6]
    tokenizer.bos_token = None
    assert evaluation_windows(stream_of([5, 6, 7]), tokenizer, 8, 2)[0]["input_ids"].tolist() == [5, 6]


LAMBDAS = [0.0, 0.3, 1.0]


@torch.no_grad()
def slow_scores(model, text: list[int], window_size: int, stride: int):
    """Return the NLL of the text for each λ, and the mean NLL of each depth, one target at a time."""
    num_targets = len(text) - 1
    nlls = {value: [] for value in LAMBDAS}
    head_nlls = [[] for _ in range(model.config.ngram_size)]
    for k in range(num_targets):
        window = 0 if k < window_size else (k - window_size) // stride + 1
        begin = max(0, min(window * stride, num_targets - window_size))
        context, target = torch.tensor([text[begin : k + 1]]), torch.tensor(text[k + 1])
        for value in LAMBDAS:
            nlls[value].append(F.cross_entropy(ensembled_logits(model, context, value)[0, -1], target))
        hidden = model.transformer(context).last_hidden_state
        for n in range(min(model.config.ngram_size, context.shape[1])):
            t = context.shape[1] - 1 - n
            prediction = head_prediction(model, hidden, context, 0, t, n) if n else hidden[0, t]
            head_nlls[n].append(F.cross_entropy(model.lm_head(prediction), target))
    means = [sum(head) / max(len(head), 1) for head in head_nlls]
    return torch.tensor([sum(values) for values in nlls.values()]), torch.tensor(means, dtype=torch.double)


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize(
    ("length", "window_size", "stride", "start"),
    [(17, 6, 1, START), (17, 6, 4, None), (17, 6, 6, START), (17, 2, 1, START), (1, 50, 7, START), (9, 50, 7, START)],
)
def test_perplexity_by_windows_equals_a_loop_over_targets(target, length, window_size, stride, start):
    model = tiny_model(torch.float64, ngram_target=target)
    tokens = random_ids(1, length)[0].tolist()
    scores = score(model, EvaluationWindows(stream_of(tokens), window_size, stride, start), LAMBDAS, batch_size=3)
    text = [start, *tokens] if start is not None else tokens
    sums, head_nlls = slow_scores(model, text, window_size, stride)
    torch.testing.assert_close(torch.tensor(scores.nll_sums, dtype=torch.double), sums.double())
    torch.testing.assert_close(torch.tensor(scores.head_nlls, dtype=torch.double), head_nlls)
    assert scores.num_tokens == len(text) - 1 and scores.num_words == len(tokens)
    torch.testing.assert_close(torch.tensor(scores.perplexities("word")).double(), (sums.double() / len(tokens)).exp())


@pytest.mark.parametrize("batch_tokens", [1, 20, 100_000])
def test_batches_of_pairs_equal_single_pairs(batch_tokens):
    model = tiny_seq2seq("marian", torch.float64, ngram_size=3).train()
    # Some targets have a single token, and heads no targets there.
    pairs = tokens_of([*random_lengths(25, 9), (3, 1), (1, 1), (1, 2), (14, 3)])
    batches, calls = PairBatches(pairs, batch_tokens, PAD), []
    # `batch_size` has no effect here.
    scores = score(model, batches, LAMBDAS, batch_size=7, on_batch=lambda: calls.append(None))
    assert len(calls) == len(batches) and model.training
    sums, head_sums, counts = [0.0] * 3, torch.zeros(3), torch.zeros(3)
    for source, target in pairs_of(pairs):
        for i, value in enumerate(LAMBDAS):
            with torch.no_grad():
                output = model.eval()(torch.tensor([source]), labels=torch.tensor([target]), ensemble_lambda=value)
            sums[i] += float(output.loss) * len(target)
        count = torch.tensor([max(len(target) - n, 0) for n in range(3)])
        head_sums, counts = head_sums + output.head_losses * count, counts + count
    assert scores.nll_sums == pytest.approx(sums, rel=1e-9) and max(sums) - min(sums) > 1
    assert scores.head_nlls == pytest.approx((head_sums / counts).tolist(), rel=1e-6)
    assert (scores.num_tokens, scores.num_words) == (counts[0], batches.num_words)
    perplexities = [math.exp(total / counts[0]) for total in sums]
    assert scores.perplexities() == pytest.approx(perplexities)
    assert scores.best_lambda == LAMBDAS[perplexities.index(min(perplexities))]


@pytest.mark.parametrize("tokens", [[], [3]])
def test_text_without_targets(tokens):
    """No perplexity of 1."""
    for measure in (lambda *text: score(*text, [0.0], 2), fit_ensemble):
        with raises_naming(ValueError, "`text`", "targets"):
            measure(tiny_model(), EvaluationWindows(stream_of(tokens), 8))
