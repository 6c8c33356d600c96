"""Rows of tokens, each a document of its own: on disk, for training, and for evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase

from ..method.documents import IGNORE_INDEX


class RowStore:
    """
    Rows of token ids in a folder, in parts. A part is written completely or not at all, so an interrupted writer
    continues with the next part.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.parts = [_read_part(path) for path in sorted(folder.glob("part-*.npz"))]

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Write rows as the next part."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"part-{len(self.parts):05d}.npz"
        # Renamed when complete, so that an interruption leaves no damaged part.
        unfinished = path.with_name(f".{path.name}")
        np.savez(
            unfinished,
            tokens=np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]),
            lengths=np.array([len(row) for row in rows], dtype=np.int32),
        )
        unfinished.replace(path)
        self.parts.append(_read_part(path))

    def limit(self, num_tokens: int) -> "RowStore":
        """Leave out the parts after the one that reaches `num_tokens`. Their files remain. Return the store."""
        totals = np.cumsum([total_length(part) for part in self.parts])
        self.parts = self.parts[: int(np.searchsorted(totals, num_tokens)) + 1]
        return self

    @property
    def rows(self) -> list[np.ndarray]:
        """All rows, in the order in which they were written."""
        return [row for part in self.parts for row in part]


def total_length(rows: Sequence[np.ndarray]) -> int:
    """Return the number of tokens of all rows."""
    return sum(map(len, rows))


def _read_part(path: Path) -> list[np.ndarray]:
    with np.load(path) as part:
        return np.split(part["tokens"], part["lengths"].cumsum()[:-1])


class TrainingRows(TorchDataset):
    """Rows for training. An item has `input_ids` and equal `labels`, of the row's own length: see `pad_batch`."""

    def __init__(self, rows: Sequence[np.ndarray]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.rows[i].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


class EvaluationRows(TorchDataset):
    r"""
    Rows for evaluation, in which every token but the first is a target once. An item has `input_ids`,
    `attention_mask` and `shift_labels`, padded to the longest row. `num_targets` and `num_words` count all rows.

    Args:
        rows (`Sequence[np.ndarray]`): The rows, each of at least one token.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, to count words.
    """

    labels_name = "shift_labels"
    is_batched = False

    def __init__(self, rows: Sequence[np.ndarray], tokenizer: PreTrainedTokenizerBase):
        self.rows = rows
        self.longest = max(map(len, rows))
        self.num_targets = sum(len(row) - 1 for row in rows)
        texts = tokenizer.batch_decode([row.tolist() for row in rows], skip_special_tokens=True)
        self.num_words = max(1, sum(len(text.split()) for text in texts))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.rows[i].astype(np.int64))
        return {
            "input_ids": _pad(ids, self.longest, 0),
            "attention_mask": _pad(torch.ones_like(ids), self.longest, 0),
            # The last token has no next one. It is read all the same: no prediction crosses padding.
            "shift_labels": _pad(ids[1:], self.longest, IGNORE_INDEX),
        }


def pad_batch(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """
    Return items of different lengths as a batch, padded on the right, with an `attention_mask`: a data collator. The
    first dimension of every tensor of an item is the position.
    """
    lengths = torch.tensor([len(item["input_ids"]) for item in items])
    longest = int(lengths.max())
    batch = {
        name: torch.stack(
            [_pad(item[name], longest, IGNORE_INDEX if name.endswith("labels") else 0) for item in items]
        )
        for name in items[0]
    }
    return {**batch, "attention_mask": (torch.arange(longest) < lengths[:, None]).long()}


def pad_prompts(prompts: Sequence[Sequence[int]], side: Literal["left", "right"]) -> dict[str, torch.Tensor]:
    """Return prompts of different lengths as a batch for `generate`, padded on one side, with an `attention_mask`."""
    step = 1 if side == "right" else -1
    # Read backwards, padding on the left is padding on the right.
    batch = pad_batch([{"input_ids": torch.tensor(prompt[::step], dtype=torch.long)} for prompt in prompts])
    return batch if side == "right" else {name: tensor.flip(1) for name, tensor in batch.items()}


def _pad(tensor: torch.Tensor, length: int, value: int) -> torch.Tensor:
    return torch.cat([tensor, tensor.new_full((length - len(tensor), *tensor.shape[1:]), value)])
