"""The perplexity metric, loaded by `evaluate`."""

import math

import evaluate
import pytest
import torch
import torch.nn.functional as F

from ngram_wdr_hf.data.token_stream import TokenStream, evaluation_windows, tokenize
from ngram_wdr_hf.data.tokenizers import start_token_id, train_bpe_tokenizer
from ngram_wdr_hf.evaluation.scores import score
from ngram_wdr_hf.metrics import PERPLEXITY
from tests.support import reference
from tests.support.checkpoints import CONTEXT, random_lines, save_checkpoint, tokenizer_of_words
from tests.support.errors import raises_naming
from tests.support.texts import load, write


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model with λ = 0.4, and its folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return save_checkpoint(folder, tokenizer_of_words(), ensemble_lambda=0.4), str(folder)


@torch.no_grad()
def slow_nll(model, ids: list[int], start: int, ensemble_lambda: float, context: int) -> float:
    """Sum the NLL token by token, each predicted from the tokens before it."""
    tokens = torch.tensor([start, *ids])
    total = 0.0
    for i in range(len(ids)):
        before = tokens[max(0, i + 1 - context) : i + 1]
        logits = reference.ensembled_logits(model, before[None], ensemble_lambda)[0, -1]
        total += F.cross_entropy(logits, tokens[i + 1]).item()
    return total


@pytest.mark.parametrize(
    ("options", "ensemble_lambda", "context"),
    [
        ({}, 0.4, CONTEXT),
        ({"ensemble_lambda": 0.0, "batch_size": 1}, 0.0, CONTEXT),
        ({"ensemble_lambda": 0.7, "stride": 1}, 0.7, CONTEXT),
        ({"block_size": 5, "stride": 1}, 0.4, 5),
    ],
    ids=["own", "plain", "other", "narrow"],
)
def test_equals_a_loop_over_positions(checkpoint, options, ensemble_lambda, context):
    model, folder = checkpoint
    texts = [random_lines(3, 0, 7), random_lines(1, seed=1), random_lines(4, seed=2).rstrip("\n")]
    if "stride" in options:
        # With stride 1, a text longer than the window equals the loop, too.
        texts.append(random_lines(12, 9, 11, seed=3))
    tokenizer = tokenizer_of_words()
    end = start_token_id(tokenizer)
    ids = [tokenizer(text)["input_ids"] for text in texts]
    # A text without a final line break gets the end token.
    ids[2].append(end)
    nlls = [slow_nll(model, row, end, ensemble_lambda, context) for row in ids]

    results = evaluate.load(PERPLEXITY).compute(predictions=texts, model_id=folder, **options)

    perplexities = [math.exp(nll / len(row)) for nll, row in zip(nlls, ids, strict=True)]
    together = math.exp(sum(nlls) / sum(map(len, ids)))
    assert results["perplexities"] == pytest.approx(perplexities, rel=1e-4)
    assert results["mean_perplexity"] == pytest.approx(sum(perplexities) / len(texts), rel=1e-4)
    assert results["perplexity"] == pytest.approx(together, rel=1e-4)
    # The tokens are words.
    assert results["word_perplexity"] == pytest.approx(together, rel=1e-4)


@pytest.mark.parametrize("stride", [None, 5])
def test_equals_the_perplexity_of_a_file(tmp_path, stride):
    """By token and by word, with empty lines, repeated spaces and no final line break."""
    text = random_lines(9, 0, 0, 0, 14, 3, 20) + "  two spaces\r\n\r\nand no end"
    # A tokenizer with tokens that span several lines.
    tokenizer = train_bpe_tokenizer([random_lines(2, 0, 0, 0) * 9], 300)
    assert len(tokenizer("\n\n\n")["input_ids"]) == 1
    model = save_checkpoint(tmp_path / "model", tokenizer, ensemble_lambda=0.4)
    stream = TokenStream.from_rows(tokenize(load(write(tmp_path / "test.txt", text)), tokenizer))
    scores = score(model, evaluation_windows(stream, tokenizer, CONTEXT, stride), [0.4], 16)

    metric = evaluate.load(PERPLEXITY)
    results = metric.compute(predictions=[text], model_id=str(tmp_path / "model"), stride=stride)

    assert results["perplexity"] == pytest.approx(scores.perplexity(0.4), rel=1e-6)
    assert results["word_perplexity"] == pytest.approx(scores.perplexity(0.4, "word"), rel=1e-6)
    assert results["perplexity"] < results["word_perplexity"]


@pytest.mark.parametrize(
    ("options", "name"), [({"predictions": ["word1", ""]}, "`predictions`"), ({"block_size": 17}, "`block_size`")]
)
def test_bad_input(checkpoint, options, name):
    # In memory, because an error leaves files locked and `evaluate` would wait for them.
    metric = evaluate.load(PERPLEXITY, keep_in_memory=True)
    with raises_naming(ValueError, name):
        metric.compute(**{"predictions": ["word1"], "model_id": checkpoint[1], **options})
