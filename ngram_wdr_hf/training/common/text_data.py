"""Running text for causal and masked language models: loading, tokenizer, tokenization."""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.python_english import python_english
from ...data.text import hold_out, load_text_dataset, load_text_files
from ...data.token_stream import TokenStream, tokenize
from ...data.tokenizers import load_tokenizer, texts_of
from ...evaluation.lengths import DEFAULT_BLOCK_SIZE, max_positions
from .text_arguments import TextDataArguments, check_heads_fit

# The highest accepted share of unknown tokens in a text.
MAX_UNKNOWN = 0.5
# Rows of streamed text that are checked before training.
CHECKED_ROWS = 100

Splits = dict[str, Dataset | IterableDataset]


@dataclass
class TextData:
    """
    Tokenized text.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        streams (`dict[str, TokenStream]`): The tokens by split. A streamed training text is not among them.
        streamed (`IterableDataset`, *optional*): The tokenized rows of a streamed training text; `None` without.
        block_size (`int`, *optional*): Tokens per block; `None` until the model is known.
    """

    tokenizer: PreTrainedTokenizerBase
    streams: dict[str, TokenStream]
    streamed: IterableDataset | None = None
    block_size: int | None = None

    def counts(self) -> dict[str, str]:
        """Return the number of tokens of each split, with the unit."""
        streamed = {} if self.streamed is None else {"train": "streamed"}
        return streamed | {split: f"{len(stream):,} tokens" for split, stream in self.streams.items()}


def load_splits(arguments: TextDataArguments, do_train: bool, writes_text: bool = False) -> Splits:
    """
    Load the text by split, as rows of `text`; without any data option, English text that ships with Python. If there
    is no validation text, a part of the training text is held out for it. Without training, the training split is left
    out of the result. If the model writes its training text (`writes_text`), no text is needed.
    """
    if writes_text and not arguments.is_given():
        return {}
    files = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    files = {split: paths for split, paths in files.items() if paths}
    if not do_train and "validation" in files:
        # Nothing is held out of it.
        files.pop("train", None)
    if arguments.dataset_name:
        splits = load_text_dataset(
            arguments.dataset_name, arguments.dataset_config, arguments.text_column, arguments.streaming
        )
    elif files:
        splits = load_text_files(files, arguments.streaming)
    else:
        splits = python_english()
    if do_train and "train" not in splits and not writes_text:
        raise InputError(
            "`--train_file` or `--dataset_name` must provide a training text: give one, or set `--do_train false` to "
            "only evaluate."
        )
    splits = hold_out(splits, arguments.validation_percentage)
    return splits if do_train else {split: rows for split, rows in splits.items() if split != "train"}


def train_or_load_tokenizer(
    kind: str,
    trainers: dict[str, Callable[[Iterable[str]], PreTrainedTokenizerBase]],
    splits: Splits,
    folder: Path | None,
) -> PreTrainedTokenizerBase:
    """
    Return the run's tokenizer, loaded from the run's `folder` if it is there (`None`: there is no folder). Otherwise
    train one on the training split if `kind` is a key of `trainers`, or else load `kind`, a folder or a name on the
    Hub.
    """
    if folder is not None and (folder / "tokenizer.json").exists():
        return load_tokenizer(str(folder))
    if kind not in trainers:
        return load_tokenizer(kind)
    if "train" not in splits:
        raise InputError(
            f"`--tokenizer {kind}` needs a training text to train on. Remove the option, or give a training text."
        )
    return trainers[kind](texts_of(splits["train"]))


def tokenize_splits(
    splits: Splits, tokenizer: PreTrainedTokenizerBase, data: TextDataArguments, seed: int
) -> TextData:
    """
    Tokenize every split. A streamed training text is shuffled with `seed` if `--shuffle_buffer` is set, and tokenized
    while it is read. Raise an `InputError` if the tokenizer does not know most of a text.
    """
    num_workers = data.num_workers or os.cpu_count() or 1
    streams, streamed = {}, None
    for split, rows in splits.items():
        if split == "train" and isinstance(rows, IterableDataset):
            rows = rows.shuffle(buffer_size=data.shuffle_buffer, seed=seed) if data.shuffle_buffer > 1 else rows
            streamed = tokenize(rows, tokenizer, split)
            _check_known(TokenStream.from_rows(streamed.take(CHECKED_ROWS)), tokenizer, split)
        else:
            streams[split] = TokenStream.from_rows(tokenize(rows, tokenizer, split, num_workers))
            _check_known(streams[split], tokenizer, split)
    return TextData(tokenizer, streams, streamed)


def check_lengths(data: TextData, ngram_size: int) -> None:
    """
    Raise an `InputError` if a text is too short for every head to have a target. Of a streamed text, only the first
    rows are read.
    """
    streams = dict(data.streams)
    if data.streamed is not None:
        streams["train"] = TokenStream.from_rows(data.streamed.take(CHECKED_ROWS))
    for split, stream in streams.items():
        if len(stream) <= ngram_size:
            raise InputError(
                f"`--ngram_size {ngram_size}` needs a text of more than {ngram_size} tokens, but the {split} text has "
                f"{len(stream)}. Give a longer text or a smaller `--ngram_size`."
            )


def find_block_size(model: PreTrainedModel, requested: int | None) -> int:
    """
    Return the tokens per block: `requested`, or for `None` the model's maximum, up to `DEFAULT_BLOCK_SIZE`. Raise an
    `InputError` if it exceeds the model's maximum, or if it or the maximum is too short for the heads.
    """
    longest, ngram_size = max_positions(model) or math.inf, model.config.ngram_size
    if longest <= ngram_size:
        raise InputError(
            f"The model has room for {longest} tokens, too few for its last head to predict one: choose an "
            f"`--ngram_size` below {longest}."
        )
    if requested is not None and requested > longest:
        raise InputError(f"`--block_size` must be at most {longest}, the model's maximum, got {requested}.")
    block_size = requested or min(longest, DEFAULT_BLOCK_SIZE)
    check_heads_fit(block_size, ngram_size)
    return block_size


def _check_known(stream: TokenStream, tokenizer: PreTrainedTokenizerBase, split: str) -> None:
    """Raise an `InputError` if more than half of the tokens are unknown. Without an unknown token, all are known."""
    if tokenizer.unk_token_id is None or tokenizer.unk_token_id == tokenizer.eos_token_id or not len(stream):
        return
    unknown = sum(int(np.count_nonzero(piece == tokenizer.unk_token_id)) for piece in stream.pieces) / len(stream)
    if unknown > MAX_UNKNOWN:
        raise InputError(
            f"`--tokenizer` does not fit the {split} text, as {unknown:.0%} of the tokens are unknown: choose "
            "another, or train one on the text."
        )
