"""Metrics loaded by `evaluate`: perplexity, GLUE's metrics, BLEU and chrF."""

import math

import evaluate
import pytest
import sacrebleu
import torch
import torch.nn.functional as F

from ngram_wdr_hf.data.tokenizers import start_token_id
from ngram_wdr_hf.metrics import GLUE, PERPLEXITY, TRANSLATION
from tests.support import reference
from tests.support.checkpoints import CONTEXT, random_lines, save_checkpoint, tokenizer_of_words
from tests.support.errors import raises_naming


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model with λ = 0.4, and its folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return save_checkpoint(folder, tokenizer_of_words(), ensemble_lambda=0.4), str(folder)


@torch.no_grad()
def slow_nll(model, ids: list[int], ensemble_lambda: float, context: int) -> float:
    """Sum the NLL of all tokens but the first, each predicted from the tokens before it."""
    total = 0.0
    for i in range(1, len(ids)):
        logits = reference.ensembled_logits(model, torch.tensor([ids[max(0, i - context) : i]]), ensemble_lambda)
        total += F.cross_entropy(logits[0, -1], torch.tensor(ids[i])).item()
    return total


@pytest.mark.parametrize(
    ("options", "ensemble_lambda", "context"),
    [
        ({}, 0.4, CONTEXT),
        ({"ensemble_weights": [0.3, 0.7 / 3, 0.7 / 3, 0.7 / 3], "stride": 1}, 0.7, CONTEXT),
        ({"block_size": 5, "stride": 1}, 0.4, 5),
    ],
    ids=["own", "other", "narrow"],
)
def test_perplexity_equals_a_loop_over_positions(checkpoint, options, ensemble_lambda, context):
    model, folder = checkpoint
    texts = [random_lines(3, 0, 7), random_lines(1, seed=1), random_lines(4, seed=2).rstrip("\n")]
    if "stride" in options:
        # With stride 1, a text longer than the window equals the loop, too.
        texts.append(random_lines(12, 9, 11, seed=3))
    tokenizer = tokenizer_of_words()
    end = start_token_id(tokenizer)
    ids = [[end, *tokenizer(text)["input_ids"]] for text in texts]
    # A text without a final line break gets the end token.
    ids[2].append(end)
    nlls, counts = [slow_nll(model, row, ensemble_lambda, context) for row in ids], [len(row) - 1 for row in ids]

    results = evaluate.load(PERPLEXITY).compute(predictions=texts, model_id=folder, **options)

    perplexities = [math.exp(nll / count) for nll, count in zip(nlls, counts, strict=True)]
    assert results["perplexities"] == pytest.approx(perplexities, rel=1e-4)
    assert results["mean_perplexity"] == pytest.approx(sum(perplexities) / len(texts), rel=1e-4)
    # The tokens are words.
    for name in ("perplexity", "word_perplexity"):
        assert results[name] == pytest.approx(math.exp(sum(nlls) / sum(counts)), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "name"), [({"predictions": ["word1", ""]}, "`predictions`"), ({"block_size": 17}, "`block_size`")]
)
def test_bad_input(checkpoint, options, name):
    # In memory, because an error leaves files locked and `evaluate` would wait for them.
    metric = evaluate.load(PERPLEXITY, keep_in_memory=True)
    with raises_naming(ValueError, name):
        metric.compute(**{"predictions": ["word1"], "model_id": checkpoint[1], **options})


@pytest.mark.parametrize(
    ("predictions", "accuracy", "correlation"),
    [([1, 1, 0, 0, 1], 3 / 5, 1 / 6), ([1, 1, 1, 0, 0], 1, 1), ([0, 0, 0, 1, 1], 0, -1), ([1] * 5, 3 / 5, 0)],
)
def test_glue(predictions, accuracy, correlation):
    for task, expected in (("sst2", accuracy), ("rte", accuracy), ("cola", correlation)):
        results = evaluate.load(GLUE, task).compute(predictions=predictions, references=[1, 1, 1, 0, 0])
        assert results == {"matthews_correlation" if task == "cola" else "accuracy": pytest.approx(expected)}
    with raises_naming(ValueError, "config_name", "sst2, cola, rte", "mnli"):
        evaluate.load(GLUE, "mnli")


HYPOTHESES = ["Die Bürger von Köln hören schöne Musik im großen Garten.", "Gestern hat er die Tür zu spät geöffnet."]
FIRST = [
    "Die Bürger von Köln hören gern Musik in dem großen Garten.",
    "Gestern öffnete er die Tür zu spät, sagte sie.",
]
SECOND = ["Im großen Garten hören die Bürger von Köln schöne Musik.", 'Sie sagte: "Er hat die Tür zu spät geöffnet."']


@pytest.mark.parametrize(
    ("references", "streams"),
    # As many references as sentences, where rows and columns could be confused.
    [(FIRST, [FIRST]), ([FIRST[0], [FIRST[1]]], [FIRST]), ([*zip(FIRST, SECOND, strict=True)], [FIRST, SECOND])],
    ids=["texts", "text and list", "lists of two"],
)
def test_translation(references, streams):
    scores = evaluate.load(TRANSLATION).compute(predictions=HYPOTHESES, references=references)
    bleu, chrf = sacrebleu.corpus_bleu(HYPOTHESES, streams), sacrebleu.corpus_chrf(HYPOTHESES, streams)
    assert (scores["bleu"], scores["chrf"], scores["num_sentences"]) == (bleu.score, chrf.score, 2)
    for name, settings in (("bleu", {"tok:13a"}), ("chrf", {"nc:6", "nw:0"})):
        common = {f"nrefs:{len(streams)}", "case:mixed", f"version:{sacrebleu.__version__}"}
        assert common | settings <= set(scores[f"{name}_signature"].split("|"))


@pytest.mark.parametrize("references", [FIRST[:1], [*FIRST, "Ja."], [FIRST, SECOND[:1]]])
def test_references_that_do_not_match(references):
    """Sacrebleu would score the first ones."""
    # In memory, because an error leaves files locked and `evaluate` would wait for them.
    metric = evaluate.load(TRANSLATION, keep_in_memory=True)
    with pytest.raises(ValueError):
        metric.compute(predictions=HYPOTHESES, references=references)
