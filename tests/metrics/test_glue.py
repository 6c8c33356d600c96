"""GLUE's metrics, loaded by `evaluate`, against their definitions."""

import math
import random

import evaluate
import pytest

from ngram_wdr_hf.metrics import GLUE
from tests.support.errors import raises_naming


def accuracy(predictions: list[int], references: list[int]) -> float:
    return sum(guess == truth for guess, truth in zip(predictions, references, strict=True)) / len(references)


def matthews_correlation(predictions: list[int], references: list[int]) -> float:
    pairs = list(zip(predictions, references, strict=True))
    both, neither, only_guessed, only_true = (pairs.count(pair) for pair in ((1, 1), (0, 0), (1, 0), (0, 1)))
    products = (both + only_guessed) * (both + only_true) * (neither + only_guessed) * (neither + only_true)
    return (both * neither - only_guessed * only_true) / math.sqrt(products) if products else 0.0


@pytest.mark.parametrize("task", ["sst2", "rte", "cola"])
def test_equals_its_definition(task):
    name, definition = ("matthews_correlation", matthews_correlation) if task == "cola" else ("accuracy", accuracy)
    metric, chance = evaluate.load(GLUE, task, keep_in_memory=True), random.Random(0)
    for share in (0.1, 0.5, 0.9):
        references = [int(chance.random() < 0.7) for _ in range(101)]
        predictions = [truth if chance.random() < share else 1 - truth for truth in references]
        results = metric.compute(predictions=predictions, references=references)
        assert results == {name: pytest.approx(definition(predictions, references), abs=1e-12)}
        for i in range(0, 101, 25):
            metric.add_batch(predictions=predictions[i : i + 25], references=references[i : i + 25])
        assert metric.compute() == results


def test_constant_predictions():
    """Constant predictions have correlation 0, inverted labels -1."""
    metric = evaluate.load(GLUE, "cola", keep_in_memory=True)
    references = [1, 1, 1, 0]
    values = [
        metric.compute(predictions=predictions, references=references)["matthews_correlation"]
        for predictions in ([1, 1, 1, 1], [0, 0, 0, 0], references, [0, 0, 0, 1])
    ]
    assert values == [0.0, 0.0, 1.0, -1.0]


@pytest.mark.parametrize("task", [None, "mnli"])
def test_unknown_task(task):
    with raises_naming(ValueError, "config_name", "sst2, cola, rte", repr(task or "default")):
        evaluate.load(GLUE, task)
