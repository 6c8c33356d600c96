"""Two processes that share a text measure what one process does."""

from dataclasses import astuple

import pytest
import torch

from ngram_wdr_hf import fit_ensemble
from ngram_wdr_hf.data.pair_batches import PairBatches
from ngram_wdr_hf.data.token_stream import EvaluationWindows
from ngram_wdr_hf.evaluation.head_acceptance import head_acceptance
from ngram_wdr_hf.evaluation.scores import processes, score, score_masked
from tests.support.batches import masked_batch
from tests.support.pairs import PAD, random_lengths, tokens_of
from tests.support.processes import in_two_processes
from tests.support.texts import stream_of
from tests.support.tiny import make, random_ids, tiny_model, tiny_seq2seq


class Masked(list):
    """Blocks with masked tokens, and the last one without."""

    labels_name = "labels"

    def __init__(self):
        batches = [masked_batch(1, 40, share=0.7 if i < 4 else 0.0, seed=i) for i in range(5)]
        super().__init__({"input_ids": ids[0], "labels": labels[0]} for ids, labels in batches)


def texts() -> dict:
    # The second process has no item of "one window", and an item less than the first of the others.
    tokens = stream_of(random_ids(1, 26)[0])
    return {
        "windows": EvaluationWindows(tokens, 8, 5, 1),
        "one window": EvaluationWindows(tokens, 50),
        "pairs": PairBatches(tokens_of(random_lengths(11, 9)), 1, PAD),
    }


def flat(values) -> list:
    return [x for value in values for x in (flat(value) if isinstance(value, list | tuple) else [value])]


def measured() -> dict[str, list[float]]:
    results = {}
    for name, text in texts().items():
        model = tiny_seq2seq("marian", torch.float64) if name == "pairs" else tiny_model(torch.float64)
        calls = []
        scores = score(model, text, [0.0, 0.3, (0.9, 0.1, 0.1, 0.0)], 1, lambda calls=calls: calls.append(None))
        # Also with items that one process lacks, because sharded models need all processes at once.
        assert len(calls) == -(-len(text) // processes()[1])
        results[name] = flat(astuple(scores))
        results[f"{name}, fit"] = flat(astuple(fit_ensemble(model, text, batch_size=1)))
        results[f"{name}, acceptance"] = head_acceptance(model, text, batch_size=1)
    results["masked"] = flat(astuple(score_masked(make("bert", torch.float64), Masked(), 1)))
    return results


def check(rank: int, folder, expected: dict[str, list[float]]) -> None:
    assert processes() == (rank, 2)
    found = measured()
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert values == pytest.approx(expected[name], rel=1e-6), name


def test_two_processes(tmp_path):
    expected = measured()
    assert expected["masked"][0] > 0 and max(expected["windows, acceptance"]) > 0
    in_two_processes(check, tmp_path, expected)
