"""Tokenized pairs, and their batches against a slow loop."""

import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from ngram_wdr_hf.data.english_german import english_german
from ngram_wdr_hf.data.pair_batches import (
    PairBatches,
    cut_into_batches,
    encode_sources,
    keep_lengths,
    side_lengths,
    tokenize_pairs,
    unwrap_batch,
)
from ngram_wdr_hf.data.pairs import texts_of_pairs
from ngram_wdr_hf.data.tokenizers import train_sentence_tokenizer
from tests.support.pairs import IGNORED, PAD, pairs_of, random_lengths, tokens_of

LENGTHS = [(1, 1), (4, 2), (2, 4), (5, 2), (2, 5), (9, 8), (3, 1)]


class TwoLanguages:
    """A tokenizer whose tokens are word lengths, negative for targets, and end in 0."""

    is_fast, eos_token_id = False, 0

    def __call__(self, text=None, text_target=None, **options):
        sign, texts = (1, text) if text_target is None else (-1, text_target)
        room = options["max_length"] - 1 if options.get("truncation") else None
        return {"input_ids": [[*[sign * len(word) for word in line.split()][:room], 0] for line in texts]}


@pytest.mark.parametrize(
    ("longest", "sources", "targets", "is_truncated"),
    [
        (None, [[2, 1, 2, 3, 4, 0], [2, 5, 0]], [[-1, 0], [-1, -2, -3, 0]], [False, False]),
        (6, [[2, 1, 2, 3, 4, 0], [2, 5, 0]], [[-1, 0], [-1, -2, -3, 0]], [False, False]),
        (4, [[2, 1, 2, 0], [2, 5, 0]], [[-1, 0], [-1, -2, -3, 0]], [True, False]),
        (3, [[2, 1, 0], [2, 5, 0]], [[-1, 0], [-1, -2, 0]], [True, True]),
        (1, [[0], [0]], [[0], [0]], [True, True]),
    ],
)
def test_tokenized_pairs(longest, sources, targets, is_truncated):
    rows = Dataset.from_dict({"source": ["a bb ccc dddd", "eeeee"], "target": ["a", " a bb  ccc "]})
    tokens = tokenize_pairs(rows, TwoLanguages(), longest, prefix="to ")
    expected = {"input_ids": sources, "labels": targets, "num_words": [1, 3], "is_truncated": is_truncated}
    assert tokens.to_dict() == expected
    assert encode_sources(rows["source"][:], TwoLanguages(), longest, "to ")[0] == sources


def test_processes_give_the_same_tokens():
    pairs = english_german({"train": 400})["train"]
    tokenizer = train_sentence_tokenizer(texts_of_pairs(pairs), 500)
    rows = pairs.select([*range(400)] * 5)
    tokens = tokenize_pairs(rows, tokenizer, longest=12)
    assert tokens.to_dict() == tokenize_pairs(rows, tokenizer, longest=12, num_workers=2).to_dict()
    ids = tokenizer(pairs["target"][:])["input_ids"]
    assert tokens["labels"][:400] == [row if len(row) <= 12 else [*row[:11], row[-1]] for row in ids]


def unpadded(batch: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """The pairs of a batch."""
    return [
        (source[mask.bool()].tolist(), target[target != IGNORED].tolist())
        for source, mask, target in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True)
    ]


def all_pairs(batches) -> list[tuple[list[int], list[int]]]:
    return [pair for batch in batches for pair in unpadded(batch)]


@pytest.mark.parametrize(
    ("longest", "ratio", "kept"),
    [
        (9, None, [0, 1, 2, 3, 4, 5, 6]),
        (8, None, [0, 1, 2, 3, 4, 6]),
        (0, None, []),
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
        targets = np.concatenate(PairBatches(rows, 10, PAD).target_tokens()).tolist()
        assert targets == [i for _, target in pairs_of(rows) for i in target]


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


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_those_of_the_slow_loop(seed):
    chance = np.random.default_rng(seed)
    count, longest = chance.integers(1, 80), chance.integers(1, 40)
    lengths = chance.integers(1, longest + 1, count)
    batch_tokens = int(chance.integers(1, 4 * longest + 1))
    for order in (chance.permutation(count), np.argsort(lengths), np.argsort(-lengths)):
        batches = cut_into_batches(lengths, batch_tokens, order)
        assert [batch.tolist() for batch in batches] == slow_batches(lengths.tolist(), batch_tokens, order.tolist())


@pytest.mark.parametrize("batch_tokens", [1, 7, 30, 100, 10_000])
def test_every_pair_once_and_every_value(batch_tokens):
    tokens = tokens_of([*random_lengths(150, 20), (50, 2), (2, 40)])
    batches = PairBatches(tokens, batch_tokens, PAD)
    assert sorted(all_pairs(batches)) == sorted(pairs_of(tokens))
    assert len(list(batches)) == len(batches)
    assert batches.num_words == 152 * 153 / 2
    for batch in batches:
        (count, width), (rows, target_width) = batch["input_ids"].shape, batch["labels"].shape
        assert rows == count and batch["attention_mask"].shape == (count, width)
        # A long pair is a batch of its own.
        assert count * max(width, target_width) <= batch_tokens or count == 1
        pairs = unpadded(batch)
        assert width == max(len(source) for source, _ in pairs)
        assert target_width == max(len(target) for _, target in pairs)
        for row, (source, target) in enumerate(pairs):
            assert batch["input_ids"][row].tolist() == source + [PAD] * (width - len(source))
            assert batch["attention_mask"][row].tolist() == [1] * len(source) + [0] * (width - len(source))
            assert batch["labels"][row].tolist() == target + [IGNORED] * (target_width - len(target))
    assert {name: tensor.dtype for name, tensor in batches[0].items()} == dict.fromkeys(batch, torch.long)
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_the_seed_decides_which_pairs_share_a_batch():
    tokens = tokens_of(np.full((60, 2), 5))
    first, again, other = (all_pairs(PairBatches(tokens, 30, PAD, seed)) for seed in (0, 0, 1))
    # Pairs of equal length are shuffled.
    assert other != first == again != pairs_of(tokens) and sorted(first) == sorted(pairs_of(tokens))


def test_batches_in_a_data_loader():
    batches = PairBatches(tokens_of(random_lengths(80, 12)), 60, PAD)
    # Spawned workers receive a pickled copy.
    loader = DataLoader(pickle.loads(pickle.dumps(batches)), batch_size=1, collate_fn=unwrap_batch, num_workers=2)
    assert all_pairs(loader) == all_pairs(batches)
