"""BLEU and chrF, called directly and as a metric of `evaluate`."""

from dataclasses import asdict

import evaluate
import pytest
import sacrebleu

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.evaluation.translation_scores import score_translations
from ngram_wdr_hf.metrics import TRANSLATION
from tests.support.errors import raises_naming

HYPOTHESES = [
    "Die Bürger von Köln hören schöne Musik im großen Garten.",
    "Gestern hat er die Tür zu spät geöffnet, sagte sie.",
    "Über 3,5 Millionen Menschen leben heute in Berlin!",
]
FIRST = [
    "Die Bürger von Köln hören gern schöne Musik in dem großen Garten.",
    "Gestern öffnete er die Tür zu spät, sagte sie.",
    "Mehr als 3,5 Millionen Menschen leben heute in Berlin.",
]
SECOND = [
    "Im großen Garten hören die Bürger von Köln schöne Musik.",
    'Sie sagte: "Gestern hat er die Tür zu spät geöffnet."',
    "In Berlin leben über 3,5 Millionen Menschen!",
]
BOTH = [list(pair) for pair in zip(FIRST, SECOND, strict=True)]


@pytest.fixture
def metric():
    # In memory, because an error leaves files locked and `evaluate` would wait for them.
    return evaluate.load(TRANSLATION, keep_in_memory=True)


def expected(*streams: list[str]) -> tuple[float, float]:
    """Score `HYPOTHESES` with sacrebleu's own functions."""
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, list(streams))
    return bleu.score, sacrebleu.corpus_chrf(HYPOTHESES, list(streams)).score


@pytest.mark.parametrize(
    ("references", "streams"),
    [(FIRST, [FIRST]), ([[text] for text in FIRST], [FIRST]), (BOTH, [FIRST, SECOND])],
    ids=["texts", "lists of one", "lists of two"],
)
def test_equals_sacrebleu(metric, references, streams):
    scores = score_translations(HYPOTHESES, references)
    assert (scores.bleu, scores.chrf) == expected(*streams)
    assert 20 < scores.bleu < 90 and 20 < scores.chrf < 95
    assert scores.num_sentences == 3

    results = metric.compute(predictions=HYPOTHESES, references=references)

    assert results == {name: value for name, value in asdict(scores).items() if name != "num_sentences"}


def test_same_text_scores_100():
    # A second reference does no harm.
    for references in (HYPOTHESES, list(zip(HYPOTHESES, FIRST, strict=True))):
        scores = score_translations(HYPOTHESES, references)
        assert (scores.bleu, scores.chrf) == pytest.approx((100, 100))


def test_case_and_umlauts_count():
    for change in (str.lower, lambda text: text.replace("ü", "u")):
        scores = score_translations([change(text) for text in HYPOTHESES], HYPOTHESES)
        assert scores.bleu < 99 and scores.chrf < 99


@pytest.mark.parametrize("count", [2, 3])
def test_references_belong_to_their_sentence(count):
    """Also with as many references as sentences, where rows and columns could be confused."""
    hypotheses = HYPOTHESES[:count]
    for shift in range(count):
        # Each translation equals one of its references and shares nothing with the others.
        references = [[f"{i} × {j}" for j in range(count)] for i in range(count)]
        for i, text in enumerate(hypotheses):
            references[i][(i + shift) % count] = text
        assert score_translations(hypotheses, references).bleu == pytest.approx(100)
    shifted = references[1:] + references[:1]
    assert score_translations(hypotheses, shifted).bleu < 30


def test_signatures():
    for references, count in ((FIRST, 1), (BOTH, 2)):
        scores = score_translations(HYPOTHESES, references)
        common = {f"nrefs:{count}", "case:mixed", f"version:{sacrebleu.__version__}"}
        assert {*common, "tok:13a"} <= set(scores.bleu_signature.split("|"))
        assert {*common, "nc:6", "nw:0"} <= set(scores.chrf_signature.split("|"))


@pytest.mark.parametrize("references", [FIRST, BOTH], ids=["one", "two"])
def test_metric_takes_one_after_the_other(references):
    metric = evaluate.load(TRANSLATION)
    results = metric.compute(predictions=HYPOTHESES, references=references)

    metric.add_batch(predictions=HYPOTHESES[:2], references=references[:2])
    metric.add_batch(predictions=HYPOTHESES[2:], references=references[2:])
    assert metric.compute() == results

    for prediction, reference in zip(HYPOTHESES, references, strict=True):
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == results


def test_metric_takes_texts_among_lists(metric):
    for references in ([FIRST[0], *([text] for text in FIRST[1:])], [[FIRST[0]], *FIRST[1:]]):
        results = metric.compute(predictions=HYPOTHESES, references=references)
        assert (results["bleu"], results["chrf"]) == expected(FIRST)


@pytest.mark.parametrize(
    ("hypotheses", "references", "names"),
    [
        ([], [], ["`references` is empty"]),
        (["ja"], [["ja", "doch"], []], ["`references`", "2 for 1"]),
        (["ja", "nein"], [["ja"], []], ["`references[1]` is empty"]),
        (
            ["ja", "nein"],
            [["ja", "doch"], "nein"],
            ["`references[1]` has 1", "`references[0]` has 2"],
        ),
    ],
    ids=["none", "lengths", "empty", "uneven"],
)
def test_bad_input(metric, hypotheses, references, names):
    with raises_naming(InputError, *names):
        score_translations(hypotheses, references)
    if len(hypotheses) != len(references):
        # The message of `evaluate` itself.
        names = ["predictions (1)", "references (2)"]
    with raises_naming(ValueError, *names):
        metric.compute(predictions=hypotheses, references=references)
