"""From rows of text to one stream of tokens, and from the stream to what is trained and evaluated on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset, Features, IterableDataset, List, Value
from datasets.fingerprint import Hasher
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from transformers import PreTrainedTokenizerBase

from .errors import InputError
from .tokenizer import start_token_id

IGNORE_INDEX = -100
TOKENIZED = Features({"input_ids": List(Value("int32")), "num_words": Value("int32")})


@dataclass
class TokenStream:
    """
    All tokens of a split, one after the other, left where they lie (in memory-mapped files, mostly).

    Args:
        pieces (`list[np.ndarray]`): The tokens, in order.
        num_words (`int`): Words separated by white space, and one for each line's end: what the paper counts.
    """

    pieces: list[np.ndarray]
    num_words: int

    def __post_init__(self):
        self.pieces = [piece for piece in self.pieces if len(piece)]
        self.ends = np.cumsum([len(piece) for piece in self.pieces])

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.pieces else 0

    def __getitem__(self, span: slice) -> torch.Tensor:
        begin, end, _ = span.indices(len(self))
        parts = []
        i = int(np.searchsorted(self.ends, begin, side="right"))
        while begin < end:
            offset = int(self.ends[i]) - len(self.pieces[i])
            parts.append(self.pieces[i][begin - offset : end - offset])
            begin, i = int(self.ends[i]), i + 1
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)) if parts else torch.empty(0, dtype=torch.long)

    @classmethod
    def from_rows(cls, rows: Dataset | IterableDataset) -> "TokenStream":
        """From the rows that `tokenize` makes."""
        if isinstance(rows, IterableDataset):
            pairs = [(np.asarray(row["input_ids"], dtype=np.int32), row["num_words"]) for row in rows]
            return cls([ids for ids, _ in pairs], sum(count for _, count in pairs))
        column = rows.data.column("input_ids")
        pieces = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
        return cls(pieces, sum(rows["num_words"]))


def tokenize(
    rows: Dataset | IterableDataset, tokenizer: PreTrainedTokenizerBase, name: str, num_workers: int = 1
) -> Dataset | IterableDataset:
    """
    Rows of text to rows of `input_ids` and `num_words`, in parallel and cached. A row that ends in a line break is
    continued by the next row; any other is a document of its own, and is ended by the tokenizer's end token.
    """
    end = tokenizer.eos_token_id

    def encode(batch: dict[str, list[str]]) -> dict[str, list]:
        try:
            ids = tokenizer(batch["text"], add_special_tokens=False, verbose=False)["input_ids"]
        except Exception as error:  # `tokenizers` raises the base class
            raise InputError(f"The tokenizer does not cover the words of the {name} text ({error}).") from error
        is_line = [text.endswith("\n") for text in batch["text"]]
        if end is not None:
            ids = [row if line else [*row, end] for row, line in zip(ids, is_line, strict=True)]
        num_words = [
            len(text.split()) + text.count("\n") + (not line)
            for text, line in zip(batch["text"], is_line, strict=True)
        ]
        return {"input_ids": ids, "num_words": num_words}

    if isinstance(rows, IterableDataset):
        return rows.map(encode, batched=True, remove_columns=["text"])
    # A tokenizer's pickle changes with use, its definition does not: by it, the work is found again in the next run.
    definition = (
        tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else repr(sorted(tokenizer.get_vocab().items()))
    )
    rows = rows.flatten_indices() if rows._indices is not None else rows
    return rows.map(
        encode,
        batched=True,
        remove_columns=["text"],
        features=TOKENIZED,
        num_proc=num_workers if num_workers > 1 and len(rows) >= 1000 * num_workers else None,
        desc=f"Tokenizing the {name} text",
        new_fingerprint=Hasher.hash([rows._fingerprint, definition, end, "tokenize-1"]),
    )


class TrainingBlocks(TorchDataset):
    """The stream cut into blocks of equal length; what is left at the end is dropped."""

    def __init__(self, stream: TokenStream, block_size: int):
        self.stream = stream
        self.block_size = min(block_size, len(stream))

    def __len__(self) -> int:
        return len(self.stream) // self.block_size

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = self.stream[i * self.block_size : (i + 1) * self.block_size]
        return {"input_ids": ids, "labels": ids}


class StreamedBlocks(TorchIterableDataset):
    """The same for text that is read as it comes: a block is made as soon as there are tokens for it."""

    def __init__(self, rows: IterableDataset, block_size: int):
        self.rows = rows
        self.block_size = block_size

    def set_epoch(self, epoch: int) -> None:
        self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        waiting: list[int] = []
        for row in self.rows:
            waiting.extend(row["input_ids"])
            while len(waiting) >= self.block_size:
                ids = torch.tensor(waiting[: self.block_size])
                del waiting[: self.block_size]
                yield {"input_ids": ids, "labels": ids}


class EvaluationWindows(TorchDataset):
    r"""
    Windows over the stream in which every token is a target once: the first window scores all of its tokens, every
    other one the last `stride`, with what is before them as context. Before the first token stands `start_token_id`;
    without one, the first token is context only. All windows have the same length.

    Args:
        stream (`TokenStream`): The tokens.
        window_size (`int`): How many tokens the model reads at a time.
        stride (`int`, *optional*): How many new tokens a window scores; `window_size` by default, which is fastest.
        start_token_id (`int`, *optional*): The token before the first.
    """

    def __init__(
        self, stream: TokenStream, window_size: int, stride: int | None = None, start_token_id: int | None = None
    ):
        self.stream = stream
        self.start = [] if start_token_id is None else [start_token_id]
        self.num_targets = len(stream) - 1 + len(self.start)
        self.window_size = min(window_size, self.num_targets)
        self.stride = self.window_size if stride is None else min(stride, self.window_size)

    def __len__(self) -> int:
        return 1 + -(-(self.num_targets - self.window_size) // self.stride)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        # The targets are numbered from 0, and the token that target number k is predicted from is k in what is read.
        scored_before = 0 if i == 0 else self.window_size + (i - 1) * self.stride
        end = min(self.window_size + i * self.stride, self.num_targets)
        begin = end - self.window_size
        offset = len(self.start)
        tokens = torch.cat(
            [
                torch.tensor(self.start if begin < offset else [], dtype=torch.long),
                self.stream[max(begin - offset, 0) : end + 1 - offset],
            ]
        )
        next_tokens = tokens[1:].clone()
        next_tokens[: scored_before - begin] = IGNORE_INDEX
        return {"input_ids": tokens[:-1], "shift_labels": next_tokens}


def evaluation_windows(
    stream: TokenStream, tokenizer: PreTrainedTokenizerBase, window_size: int, stride: int | None
) -> EvaluationWindows:
    return EvaluationWindows(stream, window_size, stride, start_token_id(tokenizer))
