"""Hidden states of a frozen model, computed once and kept on disk, so that training reads them instead."""

import shutil
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from tqdm import tqdm
from transformers import PreTrainedModel

from ...data.errors import InputError
from ...data.rows import pad_batch
from ...evaluation.modes import evaluating
from ...method.logits import logits_of

GIGABYTE = 10**9
# Half the size of float32. The rounding error is far below what training can notice.
DTYPE = np.float16


class CachedStates(TorchDataset):
    r"""
    A training set with the hidden states of a frozen model. An item has `input_ids`, `last_hidden_state` of shape
    `(T, d)`, and `shift_labels`: the model's own most likely next token at every position, which its heads are to
    draft.

    Args:
        items (`Dataset`): The training set. Its items have `input_ids`, in different lengths or not.
        folder (`Path`): The folder of the cache.
        width (`int`): The width d of the hidden states.
    """

    def __init__(self, items: TorchDataset, folder: Path, width: int):
        self.items = items
        self.folder = folder
        self.width = width
        self.ends = np.cumsum([len(items[i]["input_ids"]) for i in range(len(items))])

    @property
    def num_bytes(self) -> int:
        """The size of the cache on disk."""
        return int(self.ends[-1]) * (self.width * np.dtype(DTYPE).itemsize + np.dtype(np.int32).itemsize)

    def check_space(self, limit: float) -> None:
        """Raise an `InputError` if the cache needs more than `limit` gigabytes, or than the disk has left."""
        needed = self.num_bytes / GIGABYTE
        if needed > limit:
            raise InputError(
                f"`--cache_hidden_states` needs {needed:.2f} GB for {self.ends[-1]:,} tokens, but `--cache_limit` "
                f"allows {limit:g}: raise the limit, or train on less text."
            )
        free = shutil.disk_usage(self.folder if self.folder.exists() else self.folder.parent).free / GIGABYTE
        if needed > free and not self._path("states").exists():
            raise InputError(
                f"`--cache_hidden_states` needs {needed:.2f} GB, but {self.folder.parent} has {free:.2f} GB left: "
                "make room, or remove the option."
            )

    @torch.no_grad()
    def fill(self, model: PreTrainedModel, batch_size: int, shows_progress: bool = True) -> None:
        """Compute what is missing in the cache. An interrupted call is continued by the next one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        progress = self.folder / "num_items"
        done = int(progress.read_text()) if progress.exists() else 0
        states, greedy = self._open("r+" if done else "w+")
        loader = DataLoader(_From(self.items, done), batch_size, collate_fn=pad_batch)
        with (
            evaluating(model),
            tqdm(
                total=len(self.items),
                initial=done,
                desc="Hidden states of the training text",
                unit=" rows",
                disable=not shows_progress,
            ) as bar,
        ):
            for batch in loader:
                inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
                hidden = model.ngram_predictions(**inputs).main  # (batch_size, T, d)
                for row, mask in zip(hidden, inputs["attention_mask"].bool(), strict=True):
                    span = self._span(done)
                    states[span] = row[mask].float().cpu().numpy()
                    greedy[span] = logits_of(model, row[mask]).argmax(-1).cpu().numpy()
                    done += 1
                states.flush()
                greedy.flush()
                progress.write_text(str(done))
                bar.update(len(hidden))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        states, greedy = self._open("r")
        span = self._span(i)
        return {
            "input_ids": self.items[i]["input_ids"],
            "last_hidden_state": torch.from_numpy(np.array(states[span])),
            "shift_labels": torch.from_numpy(greedy[span].astype(np.int64)),
        }

    def _span(self, i: int) -> slice:
        return slice(0 if i == 0 else int(self.ends[i - 1]), int(self.ends[i]))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.bin"

    def _open(self, mode: str) -> tuple[np.memmap, np.memmap]:
        shape = (int(self.ends[-1]), self.width)
        return (
            np.memmap(self._path("states"), DTYPE, mode, shape=shape),
            np.memmap(self._path("greedy"), np.int32, mode, shape=shape[:1]),
        )


class _From(TorchDataset):
    """The items of a dataset from `first` on."""

    def __init__(self, items: TorchDataset, first: int):
        self.items = items
        self.first = first

    def __len__(self) -> int:
        return len(self.items) - self.first

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return self.items[self.first + i]
