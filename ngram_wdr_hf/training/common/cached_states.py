"""Hidden states of a frozen model, computed once and kept on disk, so that training reads them instead."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from tqdm import tqdm
from transformers import PreTrainedModel

from ...data.errors import InputError
from ...evaluation.head_acceptance import best_tokens
from ...evaluation.modes import evaluating
from ...method.logits import LogitLayer
from ..trainer import to_device
from .arguments import RunArguments

GIGABYTE = 10**9
# Half the size of float32. The rounding error is far below what training can notice.
DTYPE = np.float16


class CachedStates(TorchDataset):
    r"""
    A training set with the hidden states of a frozen model, and the model's own most likely next token at every
    position, which its heads are to draft. A subclass says how states are computed, and what an item is.

    Args:
        items (`Dataset`): The training set.
        lengths (`Sequence[int]`): The number of positions of each item.
        folder (`Path`): The folder of the cache.
        width (`int`): The width d of the hidden states.
    """

    # What is kept for each position, by the name of its file: the hidden state, the most likely next token, ...
    files: ClassVar[dict[str, type[np.number]]] = {"states": DTYPE, "greedy": np.int32}
    # The data collator of the items.
    collate: Callable[[list[dict[str, torch.Tensor]]], dict[str, torch.Tensor]]

    def __init__(self, items: TorchDataset, lengths: Sequence[int], folder: Path, width: int):
        self.items = items
        self.folder = folder
        self.width = width
        self.ends = np.cumsum(lengths)

    def compute(self, model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """
        Return what is kept of a batch on the model's device, by file except `greedy`; `states` are `(positions, d)`.
        """
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        """The size of the cache on disk."""
        return sum(np.dtype(dtype).itemsize * math.prod(self._shape(name)) for name, dtype in self.files.items())

    def prepare(self, model: PreTrainedModel, arguments: RunArguments) -> None:
        """Check the space, then compute what is missing in the cache, in the first process of a run."""
        training = arguments.training
        self.check_space(arguments.model.cache_limit)
        with training.main_process_first(local=False, desc="computing hidden states"):
            self.fill(to_device(model, training), training.eval_batch_size, not training.disable_tqdm)

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
        files = self._open("r+" if done else "w+")
        loader = DataLoader(_From(self.items, done), batch_size, collate_fn=self.collate)
        with (
            evaluating(model),
            tqdm(
                total=len(self.items),
                initial=done,
                desc="Hidden states of the training text",
                unit=" items",
                disable=not shows_progress,
            ) as bar,
        ):
            for batch in loader:
                values = self.compute(model, {name: tensor.to(model.device) for name, tensor in batch.items()})
                values["greedy"] = best_tokens(LogitLayer.of(model), values["states"])
                count = min(batch_size, len(self.items) - done)
                span = slice(self._span(done).start, self._span(done + count - 1).stop)
                for name, file in files.items():
                    file[span] = (values[name].float() if name == "states" else values[name]).cpu().numpy()
                    file.flush()
                done += count
                # Renamed when complete, so that an interruption leaves no damaged file.
                unfinished = progress.with_name(f".{progress.name}")
                unfinished.write_text(str(done))
                unfinished.replace(progress)
                bar.update(count)

    def __len__(self) -> int:
        return len(self.items)

    def read(self, i: int) -> dict[str, torch.Tensor]:
        """Return what is kept of item i, by file: states in float16, everything else as int64."""
        values = {name: np.array(file[self._span(i)]) for name, file in self._open("r").items()}
        return {name: torch.from_numpy(v if name == "states" else v.astype(np.int64)) for name, v in values.items()}

    def _span(self, i: int) -> slice:
        return slice(0 if i == 0 else int(self.ends[i - 1]), int(self.ends[i]))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.bin"

    def _shape(self, name: str) -> tuple[int, ...]:
        count = int(self.ends[-1])
        return (count, self.width) if name == "states" else (count,)

    def _open(self, mode: str) -> dict[str, np.memmap]:
        return {
            name: np.memmap(self._path(name), dtype, mode, shape=self._shape(name))
            for name, dtype in self.files.items()
        }


class _From(TorchDataset):
    """The items of a dataset from `first` on."""

    def __init__(self, items: TorchDataset, first: int):
        self.items = items
        self.first = first

    def __len__(self) -> int:
        return len(self.items) - self.first

    def __getitem__(self, i: int) -> Any:
        return self.items[self.first + i]
