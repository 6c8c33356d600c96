"""Sentence pairs as tokens of given lengths."""

import numpy as np
from datasets import Dataset

from ngram_wdr_hf.data.pair_batches import TOKENIZED
from tests.support.tiny import VOCAB_SIZE

PAD, IGNORED = 1, -100


def tokens_of(lengths, seed: int = 0) -> Dataset:
    """Return distinct random pairs of the given lengths."""
    chance = np.random.default_rng(seed)
    ids = [[chance.integers(2, VOCAB_SIZE, length).tolist() for length in pair] for pair in lengths]
    assert len({str(pair) for pair in ids}) == len(ids)
    rows = {
        "input_ids": [source for source, _ in ids],
        "labels": [target for _, target in ids],
        "num_words": [i + 1 for i in range(len(ids))],
        "is_truncated": [False] * len(ids),
    }
    return Dataset.from_dict(rows, TOKENIZED)


def random_lengths(count: int, longest: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, longest + 1, (count, 2))


def pairs_of(rows: Dataset) -> list[tuple[list[int], list[int]]]:
    return list(zip(rows["input_ids"][:], rows["labels"][:], strict=True))
