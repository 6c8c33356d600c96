"""Sentence pairs as tokens, in batches of so many tokens with little padding."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value
from datasets.fingerprint import Hasher
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase

from ..method.documents import IGNORE_INDEX
from .errors import InputError

TOKENIZED = Features(
    {
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "num_words": Value("int32"),
        "is_truncated": Value("bool"),
    }
)


def tokenize_pairs(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    longest: int | None = None,
    prefix: str = "",
    num_workers: int = 1,
) -> Dataset:
    """
    Rows of `source` and `target` to rows of `input_ids`, `labels`, the target's `num_words` and whether a side had
    more than `longest` tokens, of which the first ones and the end are kept. In parallel, and cached.
    """
    definition = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else tokenizer
    languages = [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")]
    return rows.map(
        partial(_encode, tokenizer=tokenizer, name=name, longest=longest, prefix=prefix),
        batched=True,
        remove_columns=["source", "target"],
        features=TOKENIZED,
        num_proc=num_workers if num_workers > 1 and len(rows) >= 1000 * num_workers else None,
        desc=f"Tokenizing the {name} pairs",
        new_fingerprint=Hasher.hash([rows._fingerprint, definition, languages, longest, prefix, "pairs-1"]),
    )


def encode_sources(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, name: str, longest: int | None = None, prefix: str = ""
) -> tuple[list[list[int]], int]:
    """The tokens of the sentences to translate, and how many of them were cut."""
    sources, is_cut = _tokens(tokenizer, name, longest, text=[prefix + text for text in texts])
    return sources, sum(is_cut)


def keep_lengths(rows: Dataset, longest: int | None, ratio: float | None) -> Dataset:
    """The pairs of which no side has more than `longest` tokens, or more than `ratio` times the other's."""
    lengths = side_lengths(rows)
    is_kept = np.ones(len(rows), dtype=bool)
    if longest is not None:
        is_kept &= lengths.max(1) <= longest
    if ratio is not None:
        is_kept &= lengths.max(1) <= ratio * lengths.min(1)
    return rows if is_kept.all() else rows.select(np.flatnonzero(is_kept))


def side_lengths(rows: Dataset) -> np.ndarray:
    """How many tokens source and target have, `(pairs, 2)`."""
    columns = (rows.with_format("arrow")[name][:] for name in ("input_ids", "labels"))
    return np.stack([pc.list_value_length(column).to_numpy() for column in columns], axis=1)


def cut_into_batches(lengths: np.ndarray, batch_tokens: int, order: np.ndarray) -> list[np.ndarray]:
    """
    Cuts rows, taken in `order`, into batches whose number of rows times the longest of their lengths is at most
    `batch_tokens`; a row that is longer is a batch of its own.
    """
    batches, begin, longest = [], 0, 0
    for end, i in enumerate(order):
        longest = max(longest, lengths[i])
        if end > begin and longest * (end + 1 - begin) > batch_tokens:
            batches.append(order[begin:end])
            begin, longest = end, lengths[i]
    return [*batches, order[begin:]]


class PairBatches(TorchDataset):
    r"""
    Batches of pairs of about equal length: an item is a whole batch, so a data loader takes one at a time and mixes
    their order. The batches are the same in every epoch.

    Args:
        rows (`Dataset`): What `tokenize_pairs` makes.
        batch_tokens (`int`): Pairs times the tokens of the longest side, at most.
        pad_token_id (`int`): What fills the sources; targets are filled with -100.
        seed (`int`, *optional*, defaults to 0): For the order among pairs of the same length.
    """

    labels_name = "labels"

    def __init__(self, rows: Dataset, batch_tokens: int, pad_token_id: int, seed: int = 0):
        self.rows = rows
        self.pad_token_id = pad_token_id
        self.num_words = pc.sum(rows.with_format("arrow")["num_words"][:]).as_py()
        lengths = side_lengths(rows)
        shuffled = np.random.default_rng(seed).permutation(len(rows))
        longest = lengths.max(1)
        # Back and forth, so that the lengths of both sides change little from one pair to the next.
        difference = (lengths[:, 0] - lengths[:, 1]) * np.where(longest % 2, 1, -1)
        order = shuffled[np.lexsort((difference[shuffled], longest[shuffled]))]
        self.batches = cut_into_batches(longest, batch_tokens, order)
        padded = sum(len(batch) * lengths[batch].max(0).sum() for batch in self.batches)
        self.padding_share = 1 - lengths.sum() / padded

    def target_tokens(self) -> list[np.ndarray]:
        """The tokens of all targets, in pieces."""
        return [pc.list_flatten(chunk).to_numpy() for chunk in self.rows.with_format("arrow")["labels"][:].chunks]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        rows = self.rows[self.batches[i]]
        input_ids = pad(rows["input_ids"], self.pad_token_id)
        is_real = pad([[1] * len(ids) for ids in rows["input_ids"]], 0)
        return {"input_ids": input_ids, "attention_mask": is_real, "labels": pad(rows["labels"], IGNORE_INDEX)}


def only(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Collates one batch."""
    (batch,) = batches
    return batch


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.LongTensor:
    """Rows of different length, filled up at the end."""
    padded = torch.full((len(rows), max(map(len, rows))), value)
    for padded_row, row in zip(padded, rows, strict=True):
        padded_row[: len(row)] = torch.tensor(row)
    return padded


def _encode(
    batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, name: str, longest: int | None, prefix: str
) -> dict[str, list]:
    sources, is_cut = _tokens(tokenizer, name, longest, text=[prefix + text for text in batch["source"]])
    targets, is_cut_too = _tokens(tokenizer, name, longest, text_target=batch["target"])
    return {
        "input_ids": sources,
        "labels": targets,
        "num_words": [len(text.split()) for text in batch["target"]],
        "is_truncated": [one or other for one, other in zip(is_cut, is_cut_too, strict=True)],
    }


def _tokens(
    tokenizer: PreTrainedTokenizerBase, name: str, longest: int | None, **texts: list[str]
) -> tuple[list[list[int]], list[bool]]:
    """The sentences' tokens, and which of them were cut to `longest` tokens."""
    ((side, sentences),) = texts.items()
    if not sentences:
        return [], []
    ids = _ids(tokenizer, name, **texts)
    is_cut = [longest is not None and len(row) > longest for row in ids]
    if any(is_cut):
        # The tokenizer knows which tokens have to stay, at the end and elsewhere.
        places = [i for i, cut in enumerate(is_cut) if cut]
        options = {side: [sentences[i] for i in places], "truncation": True, "max_length": longest}
        for i, row in zip(places, _ids(tokenizer, name, **options), strict=True):
            ids[i] = row
        if tokenizer.is_fast:
            # It would remember, and be another tokenizer to the cache.
            tokenizer.backend_tokenizer.no_truncation()
    return ids, is_cut


def _ids(tokenizer: PreTrainedTokenizerBase, name: str, **options) -> list[list[int]]:
    try:
        return tokenizer(**options, verbose=False)["input_ids"]
    except Exception as error:  # `tokenizers` raises the base class
        raise InputError(f"The tokenizer cannot read the {name} set ({error}): choose another.") from error
