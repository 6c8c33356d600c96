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

TOKENIZED = Features({"input_ids": List(Value("int32")), "num_words": Value("int32")})


@dataclass(eq=False)
class TokenStream:
    """
    All token ids of a split in order. The length is the number of tokens; a slice is a tensor.

    Args:
        ids (`np.ndarray`): The token ids, a flat array of 32-bit integers.
        num_words (`int`): White-space-separated words plus one per line break or end of a document.
    """

    ids: np.ndarray
    num_words: int

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, span: slice) -> torch.LongTensor:
        return torch.from_numpy(self.ids[span].astype(np.int64))

    @classmethod
    def from_rows(cls, rows: Dataset | IterableDataset) -> "TokenStream":
        """Make a stream of the output of `tokenize`, read to the end."""
        tables = list(rows.with_format("arrow").iter(1000))
        pieces = [chunk.flatten().to_numpy() for table in tables for chunk in table["input_ids"].chunks]
        num_words = sum(pc.sum(table["num_words"]).as_py() for table in tables)
        return cls(np.concatenate([np.empty(0, dtype=np.int32), *pieces]), num_words)


def tokenize(
    rows: Dataset | IterableDataset, tokenizer: PreTrainedTokenizerBase, num_workers: int = 1
) -> Dataset | IterableDataset:
    """
    Tokenize rows of the column `text` to `input_ids` and `num_words`. The next row continues a row that ends in a line
    break; any other row ends a document and gets the tokenizer's end token. An empty row is an empty line.

    Args:
        rows (`Dataset` or `IterableDataset`): The text. The result is cached, or streamed like the rows.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, used without its special tokens.
        num_workers (`int`, *optional*, defaults to 1): Number of processes, used from 1,000 rows per process on;
            ignored for streamed rows.
    """
    encode = partial(_encode, tokenizer=tokenizer)
    if isinstance(rows, IterableDataset):
        return rows.map(encode, batched=True, remove_columns=["text"], features=TOKENIZED)
    return map_tokenizer(rows, encode, tokenizer, TOKENIZED, num_workers, "tokenize-1")


def _encode(batch: dict[str, list[str | None]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list]:
    texts = [text or "\n" for text in batch["text"]]
    is_line = [text.endswith("\n") for text in texts]
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    end = end_token_id(tokenizer)
    if end is not None:
        ids = [row if line else [*row, end] for row, line in zip(ids, is_line, strict=True)]
    num_words = [len(text.split()) + text.count("\n") + (not line) for text, line in zip(texts, is_line, strict=True)]
    return {"input_ids": ids, "num_words": num_words}


class TrainingBlocks(TorchDataset):
    """
    The stream in blocks of `block_size` tokens, without the remainder at the end. A text shorter than a block is one
    shorter block. An item has `input_ids` and equal `labels`.
    """

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
    """
    Blocks of `block_size` tokens from streamed rows of `tokenize`, again and again: an iteration never ends, unless
    the text has no tokens. So Trainer, which counts the batches of one iteration, resumes in any pass over the text.
    An item has `input_ids` and equal `labels`.
    """

    def __init__(self, rows: IterableDataset, block_size: int):
        self.rows = rows
        self.block_size = block_size

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in itertools.count():
            block = None
            for block in self.read_once(number):
                yield block
            if block is None:
                return

    def read_once(self, number: int = 0) -> Iterator[dict[str, torch.Tensor]]:
        """
        Yield the blocks of the pass with this number, which decides how rows are shuffled, without the remainder at
        the end. A text shorter than a block is one shorter block.
        """
        self.rows.set_epoch(number)
        rest, is_first = torch.empty(0, dtype=torch.long), True
        for row in self.rows:
            *blocks, rest = torch.cat([rest, torch.tensor(row["input_ids"])]).long().split(self.block_size)
            for ids in blocks:
                is_first = False
                yield {"input_ids": ids, "labels": ids}
        if len(rest) == self.block_size or (is_first and len(rest)):
            yield {"input_ids": rest, "labels": rest}


class EvaluationWindows(TorchDataset):
    r"""
    Windows of equal length in which every token of the stream is a target once. The first window scores all of its
    tokens, every other window the last `stride` (the last window what is left); the tokens before them are context.

    An item has `input_ids` and `shift_labels`: for each position the next token, -100 if it is context. `num_targets`
    and `num_words` count the whole text.

    Args:
        stream (`TokenStream`): The tokens.
        window_size (`int`): The length of a window; that of the text if it is shorter.
        stride (`int`, *optional*): Number of new targets per window, by default `window_size`, the fastest.
        start_token_id (`int`, *optional*): The token put before the first one. With `None`, the first token of the
            text is context only.
    """

    labels_name = "shift_labels"
    is_batched = False

    def __init__(
        self, stream: TokenStream, window_size: int, stride: int | None = None, start_token_id: int | None = None
    ):
        self.stream = stream
        self.num_words = stream.num_words
        # With the start token: target k, counted from 0, is predicted at position k.
        self.text = stream
        if start_token_id is not None:
            self.text = TokenStream(np.insert(stream.ids, 0, start_token_id), stream.num_words)
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
        tokens = self.text[begin : end + 1]
        next_tokens = tokens[1:].clone()
        next_tokens[: num_scored_before - begin] = IGNORE_INDEX
        return {"input_ids": tokens[:-1], "shift_labels": next_tokens}


def evaluation_windows(
    stream: TokenStream, tokenizer: PreTrainedTokenizerBase, window_size: int, stride: int | None = None
) -> EvaluationWindows:
    """Return the [`EvaluationWindows`] of a text that begin with the start token of `tokenizer`."""
    return EvaluationWindows(stream, window_size, stride, start_token_id(tokenizer))
