"""The data of a language modeling run: which text, which tokenizer, as streams of tokens."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..data.english import python_english
from ..data.errors import InputError
from ..data.stream import TokenStream, tokenize
from ..data.text import hold_out, load_text_dataset, load_text_files
from ..data.tokenizer import texts_of, train_bpe_tokenizer, train_word_tokenizer
from .arguments import DataArguments, ModelArguments
from .presets import CLM_PRESETS, DEFAULT_PRESET

# More unknown words than known ones: this is the tokenizer of another language.
MOST_UNKNOWN = 0.5


@dataclass
class ClmData:
    """
    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, trained or loaded.
        streams (`dict[str, TokenStream]`): The tokens by split; not of a training text that is streamed.
        streamed (`IterableDataset`, *optional*): The tokenized rows of a training text that is streamed.
    """

    tokenizer: PreTrainedTokenizerBase
    streams: dict[str, TokenStream]
    streamed: IterableDataset | None = None


def load_splits(arguments: DataArguments, do_train: bool) -> dict[str, Dataset | IterableDataset]:
    """The text by split; without any option, Python's English."""
    files = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    files = {split: paths for split, paths in files.items() if paths and (do_train or split != "train")}
    if arguments.dataset_name:
        splits = load_text_dataset(
            arguments.dataset_name, arguments.dataset_config, arguments.text_column, arguments.streaming
        )
    elif files:
        if do_train and "train" not in files:
            raise InputError("There is nothing to train on: give a `--train_file`, or set `--do_train false`.")
        splits = load_text_files(files, arguments.streaming)
    else:
        splits = python_english()
    if not do_train:
        splits = {split: rows for split, rows in splits.items() if split != "train"}
        if not splits:
            raise InputError("There is nothing to evaluate: give a `--validation_file` or a `--test_file`.")
        return splits
    return hold_out(splits, arguments.validation_percentage)


def find_tokenizer(
    splits: dict[str, Dataset | IterableDataset], data: DataArguments, model: ModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """The run's own tokenizer if it has one already, else what was asked for, trained on the text if need be."""
    if folder is not None and (folder / "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(folder)
    is_embedded = data.train_file is None and data.dataset_name is None
    kind = data.tokenizer or model.model_name_or_path or ("bpe" if is_embedded else "word")
    if kind in ("word", "bpe"):
        if "train" not in splits:
            raise InputError(f"`--tokenizer {kind}` is trained on a training text, and there is none: leave it out.")
        texts = texts_of(splits["train"])
        if kind == "word":
            return train_word_tokenizer(texts, data.vocab_size)
        preset = CLM_PRESETS[model.preset or DEFAULT_PRESET]
        return train_bpe_tokenizer(texts, data.vocab_size or preset.bpe_vocab_size)
    try:
        return AutoTokenizer.from_pretrained(kind)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"There is no usable tokenizer in {kind} ({reason}): set `--tokenizer`.") from error


def tokenize_splits(
    splits: dict[str, Dataset | IterableDataset], tokenizer: PreTrainedTokenizerBase, data: DataArguments
) -> ClmData:
    num_workers = data.num_workers or os.cpu_count() or 1
    streams, streamed = {}, None
    for split, rows in splits.items():
        if split == "train" and isinstance(rows, IterableDataset):
            rows = rows.shuffle(buffer_size=data.shuffle_buffer, seed=0) if data.shuffle_buffer > 1 else rows
            streamed = tokenize(rows, tokenizer, split)
        else:
            streams[split] = TokenStream.from_rows(tokenize(rows, tokenizer, split, num_workers))
            _check_known(streams[split], tokenizer, split)
    return ClmData(tokenizer, streams, streamed)


def check_lengths(data: ClmData, ngram_size: int) -> None:
    """Every text must be long enough for every head to have something to predict."""
    for split, stream in data.streams.items():
        if len(stream) <= ngram_size:
            raise InputError(
                f"The {split} text has {len(stream)} tokens, and N = {ngram_size} needs more than {ngram_size}: give "
                "a longer text or a smaller `--ngram_size`."
            )


def _check_known(stream: TokenStream, tokenizer: PreTrainedTokenizerBase, split: str) -> None:
    if tokenizer.unk_token_id is None or tokenizer.unk_token_id == tokenizer.eos_token_id or not len(stream):
        return
    unknown = sum(int(np.count_nonzero(piece == tokenizer.unk_token_id)) for piece in stream.pieces) / len(stream)
    if unknown > MOST_UNKNOWN:
        raise InputError(
            f"The tokenizer does not cover the {split} text: {unknown:.0%} of its tokens are unknown to it. Choose "
            "another `--tokenizer`, or train one on the text."
        )
