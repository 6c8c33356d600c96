"""The perplexity metric, loaded by `evaluate`."""

import math

import evaluate
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, BloomConfig, BloomForCausalLM, PreTrainedModel

from ngram_wdr_hf import with_ngram_heads
from ngram_wdr_hf.data.tokenizers import start_token_id, train_bpe_tokenizer
from ngram_wdr_hf.metrics import PERPLEXITY
from ngram_wdr_hf.training.clm.arguments import parse_clm_arguments
from ngram_wdr_hf.training.clm.run import run_clm
from tests.support import reference
from tests.support.checkpoints import CONTEXT, random_lines, save_checkpoint, tokenizer_of_words
from tests.support.errors import raises_naming
from tests.support.tiny import plain_model


@pytest.fixture(scope="module")
def metric():
    return evaluate.load(PERPLEXITY)


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
        ({"ensemble_lambda": 0.0}, 0.0, CONTEXT),
        ({"ensemble_lambda": 0.7, "stride": 1}, 0.7, CONTEXT),
        ({"block_size": 5, "stride": 1}, 0.4, 5),
    ],
    ids=["own", "plain", "other", "narrow"],
)
def test_equals_a_loop_over_positions(metric, checkpoint, options, ensemble_lambda, context):
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

    results = metric.compute(predictions=texts, model_id=folder, **options)

    perplexities = [math.exp(nll / len(row)) for nll, row in zip(nlls, ids, strict=True)]
    together = math.exp(sum(nlls) / sum(map(len, ids)))
    assert results["perplexities"] == pytest.approx(perplexities, rel=1e-4)
    assert results["mean_perplexity"] == pytest.approx(sum(perplexities) / len(texts), rel=1e-4)
    assert results["perplexity"] == pytest.approx(together, rel=1e-4)
    # The tokens are words.
    assert results["word_perplexity"] == pytest.approx(together, rel=1e-4)


@pytest.mark.parametrize("stride", [None, 5])
def test_equals_train_clm(metric, tmp_path, stride):
    """By token and by word, for a file with empty lines, repeated spaces and no final line break."""
    text = random_lines(9, 0, 0, 0, 14, 3, 20) + "  two spaces\r\n\r\nand no end"
    # A tokenizer with tokens that span several lines.
    tokenizer = train_bpe_tokenizer([random_lines(2, 0, 0, 0) * 9], 300)
    save_checkpoint(tmp_path / "model", tokenizer, ensemble_lambda=0.4)
    assert len(tokenizer("\n\n\n")["input_ids"]) == 1
    file = tmp_path / "test.txt"
    file.write_bytes(text.encode())
    options = {
        "model_name_or_path": tmp_path / "model",
        "test_file": file,
        "do_train": False,
        "lambda_grid": 0.4,
        "sample_tokens": 0,
        "output_dir": tmp_path / "run",
        "per_device_eval_batch_size": 16,
        "report_to": "none",
        "use_cpu": True,
        **({} if stride is None else {"stride": stride}),
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    scores = run_clm(parse_clm_arguments(arguments, ""))[0].scores["test"]

    results = metric.compute(predictions=[text], model_id=str(tmp_path / "model"), stride=stride)

    assert results["perplexity"] == pytest.approx(scores.perplexity(0.4), rel=1e-6)
    assert results["word_perplexity"] == pytest.approx(scores.perplexity(0.4, "word"), rel=1e-6)
    assert results["perplexity"] < results["word_perplexity"]
    assert results["perplexities"] == [results["mean_perplexity"]] == [results["perplexity"]]


def test_plain_gpt2_is_scored_as_it_is(metric, tmp_path):
    tokenizer = tokenizer_of_words()
    model = save_checkpoint(tmp_path, tokenizer, plain_model)
    text = random_lines(8)
    ids = torch.tensor([[start_token_id(tokenizer), *tokenizer(text)["input_ids"]]])
    with torch.no_grad():
        nll = model(ids, labels=ids).loss.item()
    for ensemble_lambda in (None, 0.0, 0.4):
        results = metric.compute(predictions=[text], model_id=str(tmp_path), ensemble_lambda=ensemble_lambda)
        assert results["perplexity"] == pytest.approx(math.exp(nll), rel=1e-5)


def test_model_without_a_longest_input(metric, tmp_path):
    """ALiBi has no last position."""

    def tiny_bloom(vocab_size: int, **_) -> PreTrainedModel:
        torch.manual_seed(0)
        config = BloomConfig(vocab_size=vocab_size, hidden_size=16, n_layer=1, n_head=2, initializer_range=0.3)
        return with_ngram_heads(BloomForCausalLM(config), ensemble_lambda=0.4).eval()

    tokenizer = tokenizer_of_words()
    model = save_checkpoint(tmp_path, tokenizer, tiny_bloom)
    text = random_lines(7, 12)
    ids = tokenizer(text)["input_ids"]
    options = {"predictions": [text], "model_id": str(tmp_path)}
    for block_size, context in ((None, 99), (5, 5)):
        nll = slow_nll(model, ids, start_token_id(tokenizer), 0.4, context)
        results = metric.compute(**options, block_size=block_size, stride=None if block_size is None else np.int64(1))
        assert results["perplexity"] == pytest.approx(math.exp(nll / len(ids)), rel=1e-4)


def test_batch_size_does_not_matter(metric, checkpoint):
    text = random_lines(40, 31)
    one, three = (metric.compute(predictions=[text], model_id=checkpoint[1], batch_size=size) for size in (1, 3))
    assert one["perplexity"] == pytest.approx(three["perplexity"], rel=1e-5)


def test_text_without_a_start_token(metric, tmp_path):
    """Without a start token, the first token is context only, and one token is too short."""
    tokenizer = tokenizer_of_words()
    tokenizer.bos_token = tokenizer.sep_token = None
    model = save_checkpoint(tmp_path, tokenizer, ensemble_lambda=0.4)
    assert start_token_id(AutoTokenizer.from_pretrained(tmp_path)) is None
    first, second = tokenizer("word1 word2")["input_ids"]
    results = metric.compute(predictions=["word1 word2"], model_id=str(tmp_path))
    assert results["perplexity"] == pytest.approx(math.exp(slow_nll(model, [second], first, 0.4, 1)), rel=1e-4)
    with raises_naming(ValueError, "`predictions[1]`", "1 tokens"):
        metric.compute(predictions=["word1 word2", "word1"], model_id=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"predictions": ["word1", ""]}, ["`predictions[1]`"]),
        ({"predictions": [" \n"]}, ["`predictions[0]`"]),
        ({"predictions": []}, ["`predictions`"]),
        ({"ensemble_lambda": 1.5}, ["`ensemble_lambda`", "1.5"]),
        ({"stride": 0}, ["`stride`", "0"]),
        ({"batch_size": 0.5}, ["`batch_size`", "0.5"]),
        ({"block_size": 17}, ["`block_size`", "16", "17"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_input(checkpoint, options, names):
    # In memory, because an error leaves files locked and `evaluate` would wait for them.
    metric = evaluate.load(PERPLEXITY, keep_in_memory=True)
    with raises_naming(ValueError, *names):
        metric.compute(**{"predictions": ["word1"], "model_id": checkpoint[1], **options})


def test_works_after_an_error(checkpoint):
    metric = evaluate.load(PERPLEXITY)
    with raises_naming(ValueError, "`predictions[0]`"):
        metric.compute(predictions=[""], model_id=checkpoint[1])
    assert metric.compute(predictions=["word1"], model_id=checkpoint[1])["perplexity"] > 1
