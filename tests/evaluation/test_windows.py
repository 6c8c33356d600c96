"""Evaluation windows: every token is a target once, and the perplexity equals a slow loop."""

import pytest
import torch
import torch.nn.functional as F

from ngram_wdr_hf.data.token_stream import EvaluationWindows, evaluation_windows
from ngram_wdr_hf.data.tokenizers import train_word_tokenizer
from ngram_wdr_hf.evaluation.scores import score
from ngram_wdr_hf.method.documents import IGNORE_INDEX
from tests.support.reference import ensembled_logits, head_prediction
from tests.support.texts import START, TEXT, stream_of
from tests.support.tiny import random_ids, tiny_model


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
    ("window_size", "stride", "start"), [(6, 1, START), (6, 4, None), (6, 6, START), (2, 1, START)]
)
def test_perplexity_by_windows_equals_a_loop_over_targets(target, window_size, stride, start):
    model = tiny_model(torch.float64, ngram_target=target)
    tokens = random_ids(1, 17)[0].tolist()
    windows = EvaluationWindows(stream_of(tokens), window_size, stride, start)
    scores = score(model, windows, LAMBDAS, batch_size=3)
    text = [start, *tokens] if start is not None else tokens
    sums, head_nlls = slow_scores(model, text, window_size, stride)
    torch.testing.assert_close(torch.tensor(scores.nll_sums, dtype=torch.double), sums.double())
    torch.testing.assert_close(torch.tensor(scores.head_nlls, dtype=torch.double), head_nlls)
    assert scores.num_tokens == len(text) - 1 and scores.num_words == len(tokens)
    torch.testing.assert_close(torch.tensor(scores.perplexities("word")).double(), (sums.double() / len(tokens)).exp())


@pytest.mark.parametrize("length", [1, 2, 9])
def test_short_text_fits_one_window(length):
    model, tokens = tiny_model(torch.float64), random_ids(1, length)
    scores = score(model, EvaluationWindows(stream_of(tokens[0]), 50, 7, START), LAMBDAS, batch_size=4)
    text = torch.cat([torch.tensor([[START]]), tokens], 1)
    for value, nll in zip(LAMBDAS, scores.nll_sums, strict=True):
        logits = ensembled_logits(model, text[:, :-1], value)[0]
        assert nll == pytest.approx(F.cross_entropy(logits, tokens[0], reduction="sum").item())
    assert scores.num_tokens == length


@pytest.mark.parametrize("num_processes", [2, 3, 5])
def test_shares_of_processes_add_up(num_processes):
    model = tiny_model(torch.float64)
    windows = EvaluationWindows(stream_of(random_ids(1, 21)[0]), 8, 5, START)
    assert len(windows) == 4
    one = score(model, windows, LAMBDAS, batch_size=2)

    shares, batches = [], []
    for index in range(num_processes):
        sums = []
        batches.append(0)

        def count(index=index):
            batches[index] += 1

        score(
            model,
            windows,
            LAMBDAS,
            2,
            index,
            num_processes,
            lambda value, sums=sums: sums.append(value) or value,
            count,
        )
        shares.append(sums)
    # The same number of batches in every process.
    assert len(set(batches)) == 1
    totals = iter([sum(values) for values in zip(*shares, strict=True)])
    together = score(model, windows, LAMBDAS, 2, 0, num_processes, lambda value: next(totals))
    assert together.num_tokens == one.num_tokens == 21
    assert together.nll_sums == pytest.approx(one.nll_sums)
    assert together.head_nlls == pytest.approx(one.head_nlls)


class Packed:
    """Rows of packed documents, whose positions begin again at 0."""

    labels_name = "labels"
    num_words = 1

    def __init__(self, rows: list[list[torch.Tensor]]):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids = torch.cat(self.rows[i])
        return {
            "input_ids": ids,
            "labels": ids,
            "position_ids": torch.cat([torch.arange(len(d)) for d in self.rows[i]]),
        }


@pytest.mark.parametrize("batch_size", [1, 3])
def test_packed_documents_are_scored_one_by_one(batch_size):
    model = tiny_model(torch.float64)
    rows = [
        list(random_ids(1, 12, seed=i)[0].split(lengths)) for i, lengths in enumerate([[4, 2, 6], [1, 8, 3], [12]])
    ]
    scores = score(model, Packed(rows), LAMBDAS, batch_size)
    documents = [document.tolist() for row in rows for document in row]
    sums, head_sums, counts = torch.zeros(3), torch.zeros(4, dtype=torch.double), torch.zeros(4, dtype=torch.double)
    for document in documents:
        nlls, head_nlls = slow_scores(model, document, len(document), 1)
        count = torch.tensor([max(len(document) - 1 - n, 0) for n in range(4)])
        sums, head_sums, counts = sums + nlls, head_sums + head_nlls * count, counts + count
    assert scores.num_tokens == counts[0] == sum(len(document) - 1 for document in documents)
    assert scores.nll_sums == pytest.approx(sums.tolist())
    assert scores.head_nlls == pytest.approx((head_sums / counts).tolist())
