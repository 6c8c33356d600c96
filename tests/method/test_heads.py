"""Predictions of all depths, against loops over positions."""

import pytest
import torch

from ngram_wdr_hf.method.heads import NgramHead, NgramPredictions
from tests.support.reference import extrapolation
from tests.support.tiny import VOCAB_SIZE, random_ids, tiny_model, tiny_seq2seq

WIDTH, LENGTH = 6, 9


def make_heads(number: int, target: str = "wdr", reads_tokens: bool = False) -> list[NgramHead]:
    return [NgramHead(WIDTH, "relu", target, n * reads_tokens).double() for n in range(1, number + 1)]


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize("kept", [LENGTH, 4, 1])
@pytest.mark.parametrize("num_heads", [1, 3, 12])
def test_predictions(num_heads, kept, target):
    """Check predictions, also with earlier positions and with more heads than positions."""
    heads = make_heads(num_heads, target)
    states, embeddings = torch.randn(2, 2, LENGTH, WIDTH, dtype=torch.float64)
    runs = torch.arange(1, LENGTH + 1).expand(2, -1)[:, LENGTH - kept :]
    predictions = NgramPredictions.from_past(heads, states, embeddings if target == "wdr" else None, runs)
    assert predictions.targets is None and len(predictions.embeddings) == num_heads + 1
    assert torch.equal(predictions.main, states[:, LENGTH - kept :])
    for n, head in enumerate(heads, start=1):
        count = min(kept, max(LENGTH - n, 0))
        assert predictions.embeddings[n].shape == (2, count, WIDTH)
        for row in range(2):
            for position in range(LENGTH - count, LENGTH):
                expected = head(states[row, position - n])
                if target == "wdr":
                    expected = expected + extrapolation(embeddings[row, position - n + 1 : position + 1])
                actual = predictions.embeddings[n][row, position - LENGTH]
                torch.testing.assert_close(actual, expected)


def test_targets():
    """A head has no targets across documents, nor for predictions made at earlier positions."""
    runs = torch.tensor([[4, 5, 6, 1, 2, 3], [0, 0, 1, 2, 3, 4]])
    next_tokens = torch.tensor([[10, 11, -100, 13, 14, 15], [20, 21, 22, 23, 24, 25]])
    states = torch.randn(2, 8, WIDTH, dtype=torch.float64)
    predictions = NgramPredictions.from_past(make_heads(3, "simple"), states, None, runs, next_tokens)
    assert [prediction.shape[1] for prediction in predictions.embeddings] == [6, 6, 6, 5]
    assert predictions.targets[0].tolist() == next_tokens.tolist()
    _ = -100
    assert predictions.targets[1].tolist() == [[_, 11, _, _, 14, 15], [_, _, _, 23, 24, 25]]
    assert predictions.targets[2].tolist() == [[_, _, _, _, _, 15], [_, _, _, _, 24, 25]]
    assert predictions.targets[3].tolist() == [[_, _, _, _, _], [_, _, _, _, 25]]
    of_heads = predictions.of_heads()
    assert len(of_heads.embeddings) == len(of_heads.targets) == 3 and of_heads.targets[0] is predictions.targets[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_heads_that_read_tokens_with_large_states_in_half_precision(dtype):
    """The square of a large hidden state overflows in float16."""
    torch.manual_seed(0)
    head = NgramHead(16, "relu", num_tokens_read=1)
    states, token = 400 * torch.randn(3, 16), torch.randn(3, 16)
    expected = head.predict(states, [token])
    actual = head.to(dtype).predict(states.to(dtype), [token.to(dtype)])
    torch.testing.assert_close(actual.float(), expected, rtol=0.05, atol=5.0)


def test_ensemble():
    heads = make_heads(2)
    states, embeddings = torch.randn(2, 1, 5, WIDTH, dtype=torch.float64)
    # The fourth token starts a new document.
    runs = torch.tensor([[1, 2, 3, 1, 2]])
    predictions = NgramPredictions.from_past(heads, states, embeddings, runs)
    for ensemble_lambda in (0.0, 0.3, 1.0):
        mixed = predictions.ensemble(ensemble_lambda)[0]
        for position, run in enumerate(runs[0].tolist()):
            main = states[0, position]
            past = [predictions.embeddings[n][0, position - 5] if run > n else main for n in (1, 2)]
            expected = (1 - ensemble_lambda) * main + ensemble_lambda * sum(past) / 2
            torch.testing.assert_close(mixed[position], expected)
    assert predictions.ensemble(0.0) is predictions.main
    plain = NgramPredictions([states])
    assert plain.ensemble(0.7) is states


@pytest.mark.parametrize("make", [tiny_model, lambda *args, **fields: tiny_seq2seq("marian", *args, **fields)])
@pytest.mark.parametrize("ngram_size", [1, 4])
@torch.no_grad()
def test_predictions_of_a_model(make, ngram_size):
    """`ngram_predictions` gives the logits, targets and loss of the forward."""
    model, ids = make(torch.float64, ngram_size=ngram_size, ensemble_lambda=0.4), random_ids(2, 7)
    batch = {"input_ids": ids, "labels": ids}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = random_ids(2, 7, seed=1)
    predictions = model.ngram_predictions(**batch)
    output = model(**batch)
    assert len(predictions.embeddings) == len(predictions.targets) == ngram_size
    logits = model.get_output_embeddings()(predictions.ensemble(0.4))
    if model.config.is_encoder_decoder:
        logits = logits + model.final_logits_bias
    torch.testing.assert_close(logits, output.logits)
    loss = torch.nn.functional.cross_entropy(logits.view(-1, VOCAB_SIZE), predictions.targets[0].view(-1))
    torch.testing.assert_close(loss, output.loss)
    del batch["labels"]
    assert model.ngram_predictions(**batch).targets is None
