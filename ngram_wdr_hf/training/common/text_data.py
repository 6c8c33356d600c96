"""Running text for language models, causal and masked: which text, which tokenizer, as streams of tokens."""

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.english import python_english
from ...data.errors import InputError
from ...data.stream import TokenStream, tokenize
from ...data.text import hold_out, load_text_dataset, load_text_files
from ...data.tokenizer import load_tokenizer, texts_of
from .model import positions
from .text_arguments import TextDataArguments

# With more unknown tokens than this, it is the tokenizer of another language.
MOST_UNKNOWN = 0.5
# The rows of a streamed text that are checked before the training.
FIRST_ROWS = 100
# The default for a model that can see more.
USUAL_BLOCK_SIZE = 1024

Splits = dict[str, Dataset | IterableDataset]


@dataclass
class TextData:
    """
    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, trained or loaded.
        streams (`dict[str, TokenStream]`): The tokens by split; not of a training text that is streamed.
        streamed (`IterableDataset`, *optional*): The tokenized rows of a training text that is streamed.
        block_size (`int`, *optional*): How many tokens the model reads at a time, when it is known.
    """

    tokenizer: PreTrainedTokenizerBase
    streams: dict[str, TokenStream]
    streamed: IterableDataset | None = None
    block_size: int | None = None


def load_splits(arguments: TextDataArguments, do_train: bool) -> Splits:
    """
    The text by split; without any option, Python's English. Without training, of the training text only what is held
    out for validation.
    """
    files = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    files = {split: paths for split, paths in files.items() if paths}
    if not do_train and len(files) > 1:
        files.pop("train", None)
    if arguments.dataset_name:
        splits = load_text_dataset(
            arguments.dataset_name, arguments.dataset_config, arguments.text_column, arguments.streaming
        )
    elif files:
        splits = load_text_files(files, arguments.streaming)
    else:
        splits = python_english()
    if do_train and "train" not in splits:
        raise InputError("There is nothing to train on: give a training text, or set `--do_train false`.")
    splits = hold_out(splits, arguments.validation_percentage)
    return splits if do_train else {split: rows for split, rows in splits.items() if split != "train"}


def train_or_load_tokenizer(
    kind: str,
    trainers: dict[str, Callable[[Iterable[str]], PreTrainedTokenizerBase]],
    splits: Splits,
    folder: Path | None,
) -> PreTrainedTokenizerBase:
    """
    The tokenizer in the run's folder; if it has none yet, the `kind` that was asked for: one to be trained on the
    training text, or the name or folder of one.
    """
    if folder is not None and (folder / "tokenizer.json").exists():
        return load_tokenizer(str(folder))
    if kind not in trainers:
        return load_tokenizer(kind)
    if "train" not in splits:
        raise InputError(f"`--tokenizer {kind}` is trained on a training text, and there is none: leave it out.")
    return trainers[kind](texts_of(splits["train"]))


def tokenize_splits(
    splits: Splits, tokenizer: PreTrainedTokenizerBase, data: TextDataArguments, seed: int
) -> TextData:
    """The tokens of every split; of a streamed training text, the rows as they will come."""
    num_workers = data.num_workers or os.cpu_count() or 1
    streams, streamed = {}, None
    for split, rows in splits.items():
        if split == "train" and isinstance(rows, IterableDataset):
            rows = rows.shuffle(buffer_size=data.shuffle_buffer, seed=seed) if data.shuffle_buffer > 1 else rows
            streamed = tokenize(rows, tokenizer, split)
            _check_known(TokenStream.from_rows(streamed.take(FIRST_ROWS)), tokenizer, split)
        else:
            streams[split] = TokenStream.from_rows(tokenize(rows, tokenizer, split, num_workers))
            _check_known(streams[split], tokenizer, split)
    return TextData(tokenizer, streams, streamed)


def check_lengths(data: TextData, ngram_size: int) -> None:
    """Check that every text is long enough for every head to have a target."""
    streams = dict(data.streams)
    if data.streamed is not None:
        streams["train"] = TokenStream.from_rows(data.streamed.take(FIRST_ROWS))
    for split, stream in streams.items():
        if len(stream) <= ngram_size:
            raise InputError(
                f"The {split} text has {len(stream)} tokens, and N = {ngram_size} needs more than {ngram_size}: give "
                "a longer text or a smaller `--ngram_size`."
            )


def find_block_size(model: PreTrainedModel, asked: int | None) -> int:
    """How many tokens the model reads at a time: what was asked for, or as many as it can, within reason."""
    longest = positions(model) or math.inf
    if asked is not None and asked > longest:
        raise InputError(f"`--block_size {asked}` is more than the model can see: at most {longest}.")
    block_size = asked or min(longest, USUAL_BLOCK_SIZE)
    if block_size <= model.config.ngram_size:
        raise InputError(
            f"N = {model.config.ngram_size} needs blocks of more than {model.config.ngram_size} tokens: raise "
            f"`--block_size`, which is {block_size}."
        )
    return block_size


def _check_known(stream: TokenStream, tokenizer: PreTrainedTokenizerBase, split: str) -> None:
    """Check that the tokenizer knows most of the text."""
    if tokenizer.unk_token_id is None or tokenizer.unk_token_id == tokenizer.eos_token_id or not len(stream):
        return
    unknown = sum(int(np.count_nonzero(piece == tokenizer.unk_token_id)) for piece in stream.pieces) / len(stream)
    if unknown > MOST_UNKNOWN:
        raise InputError(
            f"The tokenizer does not cover the {split} text: {unknown:.0%} of its tokens are unknown to it. Choose "
            "another `--tokenizer`, or train one on the text."
        )
