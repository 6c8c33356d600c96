"""Rows of text as one stream of tokens, cut into training blocks or evaluation windows."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, IterableDataset, List, Value
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from transformers import PreTrainedTokenizerBase

from ..method.documents import IGNORE_INDEX
from .tokenizers import end_token_id, map_tokenizer, start_token_id

Rows = Dataset | IterableDataset
TOKENIZED = Features({"input_ids": List(Value("int32")), "num_words": Value("int32")})


@dataclass(eq=False)
class TokenStream:
    """The ids of a split, a flat 32-bit array, and its words: a line break or the end of a document is one, too."""

    ids: np.ndarray
    num_words: int

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, span: slice) -> torch.LongTensor:
        return torch.from_numpy(self.ids[span].astype(np.int64))

    @classmethod
    def from_rows(cls, rows: Rows) -> "TokenStream":
        """Make a stream of the output of `tokenize`, read to the end."""
        tables = list(rows.with_format("arrow").iter(1000))
        pieces = [chunk.flatten().to_numpy() for table in tables for chunk in table["input_ids"].chunks]
        num_words = sum(pc.sum(table["num_words"]).as_py() for table in tables)
        return cls(np.concatenate([np.empty(0, dtype=np.int32), *pieces]), num_words)


def tokenize(rows: Rows, tokenizer: PreTrainedTokenizerBase, num_workers: int = 1) -> Rows:
    """
    Tokenize rows of the column `text` to `input_ids` and `num_words`, cached, or streamed like the rows. The next row
    continues a row that ends in a line break; any other row ends a document and gets the tokenizer's end token. An
    empty row is an empty line. Other special tokens are not added.
    """
    if isinstance(rows, IterableDataset):
        encode = partial(_encode, tokenizer=tokenizer)
        return rows.map(encode, batched=True, remove_columns=["text"], features=TOKENIZED)
    return map_tokenizer(rows, _encode, TOKENIZED, tokenizer, num_workers)


def _encode(batch: dict[str, list[str | None]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list]:
    texts = [text or "\n" for text in batch["text"]]
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    end = [] if end_token_id(tokenizer) is None else [end_token_id(tokenizer)]
    is_last = [not text.endswith("\n") for text in texts]
    return {
        "input_ids": [row + end * last for row, last in zip(ids, is_last, strict=True)],
        "num_words": [len(text.split()) + text.count("\n") + last for text, last in zip(texts, is_last, strict=True)],
    }


class TrainingBlocks(TorchDataset):
    """The stream in blocks, without the remainder at the end. A text shorter than a block is one shorter block."""

    def __init__(self, stream: TokenStream, block_size: int):
        self.stream = stream
        self.block_size = max(1, min(block_size, len(stream)))

    def __len__(self) -> int:
        return len(self.stream) // self.block_size

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        i = range(len(self))[i]  # the `IndexError` ends a `for` loop
        ids = self.stream[i * self.block_size : (i + 1) * self.block_size]
        return {"input_ids": ids, "labels": ids}


class StreamedBlocks(TorchIterableDataset):
    """The same blocks from streamed rows, again and again: so Trainer resumes in any pass over the text."""

    def __init__(self, rows: IterableDataset, block_size: int):
        self.rows = rows
        self.block_size = block_size

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in itertools.count():
            self.rows.set_epoch(number)  # rows are shuffled anew
            rest, is_empty = torch.empty(0, dtype=torch.long), True
            for row in self.rows:
                *blocks, rest = torch.cat([rest, torch.tensor(row["input_ids"])]).long().split(self.block_size)
                for ids in blocks:
                    is_empty = False
                    yield {"input_ids": ids, "labels": ids}
            if len(rest) == self.block_size or (is_empty and len(rest)):
                is_empty = False
                yield {"input_ids": rest, "labels": rest}
            if is_empty:
                return


class EvaluationWindows(TorchDataset):
    """
    Windows of equal length in which every token of the stream is a target once. The first window scores all of its
    tokens, every other window the last `stride` (the last window what is left), by default all; the tokens before them
    are context. An item has `input_ids` and `shift_labels`: for each position the next token, -100 if it is context.
    Without the `start_token_id` before the text, its first token is context only.
    """

    labels_name = "shift_labels"
    is_batched = False

    def __init__(
        self, stream: TokenStream, window_size: int, stride: int | None = None, start_token_id: int | None = None
    ):
        self.stream = stream
        self.num_words = stream.num_words
        start = [] if start_token_id is None else [start_token_id]
        # Target k, counted from 0, is predicted at position k.
        self.text = TokenStream(np.insert(stream.ids, 0, start), stream.num_words)
        self.num_targets = max(0, len(self.text) - 1)
        self.window_size = max(1, min(window_size, self.num_targets))
        self.stride = self.window_size if stride is None else min(stride, self.window_size)

    def __len__(self) -> int:
        return 1 + -(-(self.num_targets - self.window_size) // self.stride)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        i = range(len(self))[i]
        end = min(self.window_size + i * self.stride, self.num_targets)
        begin = end - self.window_size
        num_scored_before = 0 if i == 0 else self.window_size + (i - 1) * self.stride
        targets = self.text[begin + 1 : end + 1]
        targets[: num_scored_before - begin] = IGNORE_INDEX
        return {"input_ids": self.text[begin:end], "shift_labels": targets}


def evaluation_windows(
    stream: TokenStream, tokenizer: PreTrainedTokenizerBase, window_size: int, stride: int | None = None
) -> EvaluationWindows:
    """Return the [`EvaluationWindows`] of a text that begin with the start token of `tokenizer`."""
    return EvaluationWindows(stream, window_size, stride, start_token_id(tokenizer))
