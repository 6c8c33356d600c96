"""Rows of tokens, each a document of its own: on disk, for training, and for evaluation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedTokenizerBase

from ..method.documents import IGNORE_INDEX


class RowStore:
    """Rows of token ids in a folder, in parts, so that an interrupted writer continues with the next part."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.parts = [_read_part(path) for path in sorted(folder.glob("part-*.npz"))]

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Write rows as the next part."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"part-{len(self.parts):05d}.npz"
        # Renamed when complete, so that an interruption leaves no damaged part.
        unfinished = path.with_name(f".{path.name}")
        tokens = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows])
        np.savez(unfinished, tokens=tokens, lengths=np.array([len(row) for row in rows], dtype=np.int32))
        unfinished.replace(path)
        self.parts.append(_read_part(path))

    def limit(self, num_tokens: int) -> "RowStore":
        """Leave out the parts after the one that reaches `num_tokens`. Their files remain."""
        totals = np.cumsum([total_length(part) for part in self.parts])
        self.parts = self.parts[: int(np.searchsorted(totals, num_tokens)) + 1]
        return self

    @property
    def rows(self) -> list[np.ndarray]:
        """All rows, in the order in which they were written."""
        return [row for part in self.parts for row in part]


def _read_part(path: Path) -> list[np.ndarray]:
    with np.load(path) as part:
        return np.split(part["tokens"], part["lengths"].cumsum()[:-1])


def total_length(rows: Sequence[np.ndarray]) -> int:
    """Return the number of tokens of all rows."""
    return sum(map(len, rows))


class TrainingRows(TorchDataset):
    """Rows for training. An item has `input_ids` and equal `labels`, of the row's own length: see `pad_batch`."""

    def __init__(self, rows: Sequence[np.ndarray]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = torch.from_numpy(self.rows[i].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


class EvaluationRows(TrainingRows):
    """Rows padded to the longest; all tokens but the first are targets. The tokenizer decodes them to count words."""

    labels_name = "shift_labels"
    is_batched = False

    def __init__(self, rows: Sequence[np.ndarray], tokenizer: PreTrainedTokenizerBase):
        super().__init__(rows)
        self.num_targets = total_length(rows) - len(rows)
        texts = tokenizer.batch_decode([row.tolist() for row in rows], skip_special_tokens=True)
        self.num_words = max(1, sum(len(text.split()) for text in texts))
        ids = [torch.from_numpy(row).long() for row in rows]
        # The last token has no next one. It is read all the same: no prediction crosses padding.
        items = [{"input_ids": row, "shift_labels": F.pad(row[1:], (0, 1), value=IGNORE_INDEX)} for row in ids]
        self.batch = pad_batch(items)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {name: tensor[i] for name, tensor in self.batch.items()}


def pad_batch(items: Sequence[dict[str, torch.Tensor]], side: str = "right") -> dict[str, torch.Tensor]:
    """Pad items of different lengths to a batch with `attention_mask`. The first dimension is the position."""
    items = [{**item, "attention_mask": torch.ones_like(item["input_ids"])} for item in items]
    values = {name: IGNORE_INDEX if name.endswith("labels") else 0 for name in items[0]}
    return {name: pad_sequence([item[name] for item in items], True, values[name], side) for name in items[0]}


def pad_prompts(prompts: Sequence[Sequence[int]], side: str) -> dict[str, torch.Tensor]:
    """Return prompts of different lengths as a batch for `generate`."""
    return pad_batch([{"input_ids": torch.tensor(prompt, dtype=torch.long)} for prompt in prompts], side)
