"""Batches of tokenized pairs: counts and padding against a slow loop."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ngram_wdr_hf.data.pair_batches import (
    PairBatches,
    cut_into_batches,
    keep_lengths,
    pad,
    side_lengths,
    unwrap_batch,
)
from tests.support.pairs import IGNORED, PAD, pairs_of, random_lengths, tokens_of


def unpadded(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch."""
    return [
        (source[mask.bool()].tolist(), target[target != IGNORED].tolist())
        for source, mask, target in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True)
    ]


def all_pairs(batches) -> list[tuple[list[int], list[int]]]:
    return [pair for batch in batches for pair in unpadded(batch)]


def same(batch, other) -> bool:
    return batch.keys() == other.keys() and all(torch.equal(batch[name], other[name]) for name in batch)


LENGTHS = [(1, 1), (4, 2), (2, 4), (5, 2), (2, 5), (9, 8), (3, 1)]


@pytest.mark.parametrize(
    ("longest", "ratio", "kept"),
    [
        (None, None, [0, 1, 2, 3, 4, 5, 6]),
        (9, None, [0, 1, 2, 3, 4, 5, 6]),
        (8, None, [0, 1, 2, 3, 4, 6]),
        (0, None, []),
        (None, 1.0, [0]),
        (None, 2.5, [0, 1, 2, 3, 4, 5]),
        (None, 2.49, [0, 1, 2, 5]),
        (8, 2.0, [0, 1, 2]),
    ],
)
def test_lengths_that_are_kept(longest, ratio, kept):
    tokens = tokens_of(LENGTHS)
    assert side_lengths(tokens).tolist() == [list(pair) for pair in LENGTHS]
    rows = keep_lengths(tokens, longest, ratio)
    assert pairs_of(rows) == [pairs_of(tokens)[i] for i in kept]
    assert rows["num_words"][:] == [i + 1 for i in kept]
    if kept:
        # Dropped rows are neither measured nor batched.
        assert side_lengths(rows).tolist() == [list(LENGTHS[i]) for i in kept]
        batches = PairBatches(rows, 10, PAD)
        assert sorted(all_pairs(batches)) == sorted(pairs_of(rows))
        assert np.concatenate(batches.target_tokens()).tolist() == [i for _, target in pairs_of(rows) for i in target]


def slow_batches(lengths: list[int], batch_tokens: int, order: list[int]) -> list[list[int]]:
    """Add each row to the last batch if it fits, else to a new one."""
    batches = [[order[0]]]
    for i in order[1:]:
        grown = [*batches[-1], i]
        if len(grown) * max(lengths[k] for k in grown) <= batch_tokens:
            batches[-1] = grown
        else:
            batches.append([i])
    return batches


@pytest.mark.parametrize("seed", range(30))
def test_batches_are_those_of_the_slow_loop(seed):
    chance = np.random.default_rng(seed)
    count, longest = chance.integers(1, 80), chance.integers(1, 40)
    lengths = chance.integers(1, longest + 1, count)
    batch_tokens = int(chance.integers(1, 4 * longest + 1))

    def size(batch):
        return len(batch) * lengths[batch].max()

    for order in (chance.permutation(count), np.argsort(lengths), np.argsort(-lengths)):
        batches = cut_into_batches(lengths, batch_tokens, order)
        assert [batch.tolist() for batch in batches] == slow_batches(lengths.tolist(), batch_tokens, order.tolist())
        assert np.concatenate(batches).tolist() == order.tolist()
        assert all(size(batch) <= batch_tokens or len(batch) == 1 for batch in batches)
        for batch, following in itertools.pairwise(batches):
            assert size(np.concatenate([batch, following])) > batch_tokens


@pytest.mark.parametrize("batch_tokens", [1, 7, 30, 100, 10_000])
def test_every_pair_once_and_every_value(batch_tokens):
    tokens = tokens_of(random_lengths(150, 20))
    batches = PairBatches(tokens, batch_tokens, PAD)
    assert sorted(all_pairs(batches)) == sorted(pairs_of(tokens))
    assert len(list(batches)) == len(batches)
    assert batches.num_words == 150 * 151 / 2
    for batch in batches:
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        (count, width), (rows, target_width) = batch["input_ids"].shape, batch["labels"].shape
        assert rows == count and batch["attention_mask"].shape == (count, width)
        assert count * max(width, target_width) <= batch_tokens or count == 1
        pairs = unpadded(batch)
        assert width == max(len(source) for source, _ in pairs)
        assert target_width == max(len(target) for _, target in pairs)
        for row, (source, target) in enumerate(pairs):
            assert batch["input_ids"][row].tolist() == source + [PAD] * (width - len(source))
            assert batch["attention_mask"][row].tolist() == [1] * len(source) + [0] * (width - len(source))
            assert batch["labels"][row].tolist() == target + [IGNORED] * (target_width - len(target))
    assert {tensor.dtype for tensor in batches[0].values()} == {torch.long}
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_long_pair_is_a_batch_of_its_own():
    tokens = tokens_of([(3, 3), (50, 2), (3, 2), (2, 40), (2, 3)])
    batches = list(PairBatches(tokens, 20, PAD))
    shapes = sorted((tuple(batch["input_ids"].shape), tuple(batch["labels"].shape)) for batch in batches)
    assert ((1, 50), (1, 2)) in shapes and ((1, 2), (1, 40)) in shapes
    assert sorted(all_pairs(batches)) == sorted(pairs_of(tokens))
    (one,) = PairBatches(tokens_of([(9, 4)]), 5, PAD)
    assert one["input_ids"].shape == (1, 9) and one["attention_mask"].tolist() == [[1] * 9]


def test_share_of_padding_is_small():
    chance = np.random.default_rng(0)
    # As in a corpus: mostly short sentences, with translations of similar length.
    sources = chance.lognormal(math.log(22), 0.6, 3000).clip(2, 200)
    targets = (sources * chance.normal(1.05, 0.15, 3000)).clip(2, 200)
    lengths = np.stack([sources, targets], axis=1).astype(int)
    batches = PairBatches(tokens_of(lengths), 2048, PAD)
    padded = sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)
    assert 1 - lengths.sum() / padded == pytest.approx(batches.padding_share)
    assert batches.padding_share < 0.1
    in_file_order = cut_into_batches(lengths.max(1), 2048, np.arange(3000))
    padded = sum(len(batch) * lengths[batch].max(0).sum() for batch in in_file_order)
    assert 1 - lengths.sum() / padded > 4 * batches.padding_share
    assert len(in_file_order) > 1.5 * len(batches)
    assert PairBatches(tokens_of([(4, 6)] * 10), 24, PAD).padding_share == 0


def test_the_seed_decides_which_pairs_share_a_batch():
    tokens = tokens_of(np.full((60, 2), 5))
    first, again, other = (PairBatches(tokens, 30, PAD, seed) for seed in (0, 0, 1))
    assert len(first) == len(again) == len(other) == 10
    assert all(same(batch, twin) for batch, twin in zip(first, again, strict=True))
    assert not any(same(batch, twin) for batch, twin in zip(first, other, strict=True))
    # Pairs of equal length are shuffled.
    assert all_pairs(first) != pairs_of(tokens)
    assert sorted(all_pairs(other)) == sorted(pairs_of(tokens))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_in_a_data_loader(num_workers):
    tokens = tokens_of(random_lengths(80, 12))
    batches = PairBatches(tokens, 60, PAD)
    loaded = list(DataLoader(batches, batch_size=1, collate_fn=unwrap_batch, num_workers=num_workers))
    assert all(same(batch, twin) for batch, twin in zip(loaded, batches, strict=True))
    generator = torch.Generator().manual_seed(0)
    mixed = DataLoader(batches, 1, shuffle=True, collate_fn=unwrap_batch, num_workers=num_workers, generator=generator)
    epochs = [all_pairs(mixed) for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(pairs_of(tokens))
    # Spawned workers receive a pickled copy.
    assert all(same(batch, twin) for batch, twin in zip(pickle.loads(pickle.dumps(batches)), batches, strict=True))


def test_pad():
    padded = pad([[5, 6, 7], [], [8]], 3)
    assert padded.tolist() == [[5, 6, 7], [3, 3, 3], [8, 3, 3]] and padded.dtype == torch.long
    assert pad([[]], 3).shape == (1, 0)
