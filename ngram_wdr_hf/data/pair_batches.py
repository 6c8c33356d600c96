"""Tokenized sentence pairs, in batches with a token budget and little padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase

from ..method.documents import IGNORE_INDEX
from .tokenizers import map_tokenizer

IDS = List(Value("int32"))
TOKENIZED = Features(input_ids=IDS, labels=IDS, num_words=Value("int32"), is_truncated=Value("bool"))


def tokenize_pairs(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    longest: int | None = None,
    prefix: str = "",
    num_workers: int = 1,
) -> Dataset:
    """Tokenize `source`, after `prefix`, and `target`, each up to `longest` tokens. The result is cached."""
    return map_tokenizer(rows, _encode, TOKENIZED, tokenizer, num_workers, longest=longest, prefix=prefix)


def encode_sources(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int | None = None, prefix: str = ""
) -> tuple[list[list[int]], int]:
    """Return the ids of each sentence to translate, and how many sentences were truncated to `longest` tokens."""
    sources, is_truncated = _tokens(tokenizer, longest, text=[prefix + text for text in texts]) if texts else ([], [])
    return sources, sum(is_truncated)


def _encode(batch: dict[str, list[str]], tokenizer: Any, longest: int | None, prefix: str) -> dict[str, list]:
    sources, is_source_cut = _tokens(tokenizer, longest, text=[prefix + text for text in batch["source"]])
    # Targets that the model is yet to write are `None`.
    texts = [text or "" for text in batch["target"]]
    targets, is_target_cut = _tokens(tokenizer, longest, text_target=texts)
    return {
        "input_ids": sources,
        "labels": targets,
        "num_words": [len(text.split()) for text in texts],
        "is_truncated": [one or other for one, other in zip(is_source_cut, is_target_cut, strict=True)],
    }


def _tokens(tokenizer: Any, longest: int | None, **texts: list[str]) -> tuple[list[list[int]], list[bool]]:
    """Return the token ids of each `text` or `text_target`, and whether it was truncated to `longest` tokens."""
    ids = tokenizer(**texts, verbose=False)["input_ids"]
    is_truncated = [longest is not None and len(row) > longest for row in ids]
    if any(is_truncated):
        # Truncation by the tokenizer keeps its special tokens.
        ids = tokenizer(**texts, truncation=True, max_length=longest)["input_ids"]
        if tokenizer.is_fast:
            # The setting persists in the tokenizer and would change the cache key.
            tokenizer.backend_tokenizer.no_truncation()
    return ids, is_truncated


def keep_lengths(rows: Dataset, longest: int | None, ratio: float | None) -> Dataset:
    """Return the pairs where no side has more than `longest` tokens or more than `ratio` times the other side's."""
    shorter, longer = np.sort(side_lengths(rows)).T
    is_kept = (longest is None or longer <= longest) & (longer <= (np.inf if ratio is None else ratio * shorter))
    return rows if is_kept.all() else rows.select(np.flatnonzero(is_kept))


def side_lengths(rows: Dataset) -> np.ndarray:
    """Return the numbers of source and target tokens of tokenized pairs, `(num_pairs, 2)`."""
    columns = (rows.with_format("arrow")[name][:] for name in ("input_ids", "labels"))
    return np.stack([pc.list_value_length(column).to_numpy() for column in columns], axis=1)


def cut_into_batches(lengths: np.ndarray, batch_tokens: int, order: np.ndarray) -> list[np.ndarray]:
    """Cut row indices, in this order, into batches of at most `batch_tokens` tokens with padding, or of one row."""
    batches, begin, longest = [], 0, 0
    for end, i in enumerate(order):
        longest = max(longest, lengths[i])
        if end > begin and longest * (end + 1 - begin) > batch_tokens:
            batches.append(order[begin:end])
            begin, longest = end, lengths[i]
    return [*batches, order[begin:]]


class PairBatches(TorchDataset):
    """
    Batches of pairs of similar length, at most `batch_tokens` tokens: number of pairs times the longest side. A longer
    pair is a batch of its own. `seed` decides the order among pairs of the same length. An item is a whole batch: use
    a data loader of batch size 1 with `unwrap_batch`. Each epoch has the same batches, shuffled by the loader.
    """

    labels_name = "labels"
    is_batched = True

    def __init__(self, rows: Dataset, batch_tokens: int, pad_token_id: int, seed: int = 0):
        self.rows = rows
        self.pad_token_id = pad_token_id
        self.num_words = pc.sum(rows.with_format("arrow")["num_words"][:]).as_py()
        lengths = side_lengths(rows)
        longest = lengths.max(1)
        shuffled = np.random.default_rng(seed).permutation(len(rows))
        # Alternating direction, so that both sides' lengths change little from one pair to the next.
        difference = (lengths[:, 0] - lengths[:, 1]) * np.where(longest % 2, 1, -1)
        order = shuffled[np.lexsort((difference[shuffled], longest[shuffled]))]
        self.batches = cut_into_batches(longest, batch_tokens, order)

    def __str__(self) -> str:
        return f"{len(self.rows):,} in {len(self):,} batches, {sum(self.rows['is_truncated'][:]):,} truncated"

    def target_tokens(self) -> list[np.ndarray]:
        """Return the token ids of all targets one after the other, as a list of flat arrays."""
        return [pc.list_flatten(chunk).to_numpy() for chunk in self.rows.with_format("arrow")["labels"][:].chunks]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        rows = self.rows[self.batches[i]]
        return {
            "input_ids": pad(rows["input_ids"], self.pad_token_id),
            "attention_mask": pad([[1] * len(ids) for ids in rows["input_ids"]], 0),
            "labels": pad(rows["labels"], IGNORE_INDEX),
        }


def unwrap_batch(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the single batch in the list: the collator of a data loader over `PairBatches`, of batch size 1."""
    (batch,) = batches
    return batch


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.LongTensor:
    """Return the rows padded with `value` on the right, `(num_rows, longest)`."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=value)
