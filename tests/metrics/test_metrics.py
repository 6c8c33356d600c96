"""GLUE's metrics, BLEU and chrF, loaded by `evaluate`."""

import math
import random

import evaluate
import pytest
import sacrebleu

from ngram_wdr_hf.evaluation.translation_scores import score_translations
from ngram_wdr_hf.metrics import GLUE, TRANSLATION
from tests.support.errors import raises_naming


def accuracy(predictions: list[int], references: list[int]) -> float:
    return sum(guess == truth for guess, truth in zip(predictions, references, strict=True)) / len(references)


def matthews_correlation(predictions: list[int], references: list[int]) -> float:
    pairs = list(zip(predictions, references, strict=True))
    both, neither, only_guessed, only_true = (pairs.count(pair) for pair in ((1, 1), (0, 0), (1, 0), (0, 1)))
    products = (both + only_guessed) * (both + only_true) * (neither + only_guessed) * (neither + only_true)
    return (both * neither - only_guessed * only_true) / math.sqrt(products) if products else 0.0


@pytest.mark.parametrize(
    ("task", "definition"), [("sst2", accuracy), ("rte", accuracy), ("cola", matthews_correlation)]
)
def test_glue(task, definition):
    metric, chance = evaluate.load(GLUE, task, keep_in_memory=True), random.Random(0)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        references = [int(chance.random() < 0.7) for _ in range(101)]
        predictions = [truth if chance.random() < share else 1 - truth for truth in references]
        results = metric.compute(predictions=predictions, references=references)
        assert results == {definition.__name__: pytest.approx(definition(predictions, references), abs=1e-12)}
    constant = metric.compute(predictions=[1, 1, 1, 1], references=[1, 1, 1, 0])
    assert list(constant.values()) == [0.75 if definition is accuracy else 0.0]


def test_unknown_task():
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
    scores = score_translations(HYPOTHESES, references)
    bleu, chrf = sacrebleu.corpus_bleu(HYPOTHESES, streams), sacrebleu.corpus_chrf(HYPOTHESES, streams)
    assert (scores.bleu, scores.chrf, scores.num_sentences) == (bleu.score, chrf.score, 2)
    for signature, settings in ((scores.bleu_signature, {"tok:13a"}), (scores.chrf_signature, {"nc:6", "nw:0"})):
        common = {f"nrefs:{len(streams)}", "case:mixed", f"version:{sacrebleu.__version__}"}
        assert common | settings <= set(signature.split("|"))

    metric = evaluate.load(TRANSLATION)
    results = metric.compute(predictions=HYPOTHESES, references=references)
    assert results == {name: value for name, value in vars(scores).items() if name != "num_sentences"}
    for prediction, reference in zip(HYPOTHESES, references, strict=True):
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == results


def test_references_that_do_not_match():
    """Sacrebleu would score the first ones."""
    for references in (FIRST[:1], [*FIRST, "Ja."], [FIRST, SECOND[:1]]):
        with pytest.raises(ValueError):
            score_translations(HYPOTHESES, references)
