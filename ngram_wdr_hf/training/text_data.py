"""Running text for causal and masked language models: loading, tokenizer, tokens."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.errors import InputError
from ..data.python_english import python_english
from ..data.rows import total_length
from ..data.text import SPLITS, Splits, hold_out, load_text_dataset, load_text_files
from ..data.token_stream import TokenStream, tokenize
from ..data.tokenizers import load_tokenizer, texts_of
from ..evaluation.models import DEFAULT_BLOCK_SIZE, max_positions
from .options import ModelOptions, RunTrainingArguments, TextOptions
from .presets import DEFAULT_PRESET

# The highest accepted share of unknown tokens in a text.
MAX_UNKNOWN = 0.5
# Rows of streamed text that are checked before training.
CHECKED_ROWS = 100


@dataclass
class TextData:
    """Tokenized text."""

    # The tokens by split, without a streamed training text, and the tokenized rows of that.
    streams: dict[str, TokenStream]
    streamed: IterableDataset | None = None
    # Rows that the model wrote itself, for training and, without another text, for validation.
    own: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def counts(self) -> dict[str, str]:
        """Return the number of tokens of each split, with the unit."""
        counts = {} if self.streamed is None else {"train": "streamed"}
        counts |= {split: f"{len(stream):,} tokens" for split, stream in self.streams.items()}
        names = {"train": "own text", "validation": "validation on own text"}
        return counts | {names[split]: f"{total_length(rows):,} tokens" for split, rows in self.own.items() if rows}

    def training_ids(self) -> list[np.ndarray]:
        """Return the token ids of the training text, and of the rows that the model wrote; none of a streamed text."""
        return [stream.ids for split, stream in self.streams.items() if split == "train"] + self.own.get("train", [])


def load_splits(options: TextOptions, training: RunTrainingArguments, needs_text: bool = True) -> Splits:
    """
    Load the text by split, by default English text that ships with Python. Part of the training text is held out if
    there is no validation text. With `needs_text=False`, the model writes its training text: there may be no other.
    """
    if options.streaming and training.do_train:
        if training.max_steps <= 0 or "epoch" in (training.eval_strategy, training.save_strategy):
            raise InputError("`--streaming` has no epochs: set `--max_steps` and `--eval_strategy steps`.")
        if training.dataloader_num_workers > 1:
            # Each worker would get files of its own, and hold out rows of its own.
            raise InputError("`--streaming` reads the text in one process: set `--dataloader_num_workers` to 0 or 1.")
    if not options.names_text and not needs_text:
        return {}
    files = {split: paths for split in SPLITS if (paths := getattr(options, f"{split}_file"))}
    if not training.do_train and "validation" in files:
        # Nothing is held out of it.
        files.pop("train", None)
    if options.dataset_name:
        source = options.dataset_name, options.dataset_config, options.text_column
        splits = load_text_dataset(*source, options.streaming)
    else:
        splits = load_text_files(files, options.streaming) if files else python_english()
    if training.do_train and needs_text and "train" not in splits:
        raise InputError("A training text is missing: give `--train_file` or a `--dataset_name` with a train split.")
    splits = hold_out(splits, options.validation_percentage)
    return splits if training.do_train else {split: rows for split, rows in splits.items() if split != "train"}


def find_tokenizer(
    options: Any, model: ModelOptions, splits: Splits, trainers: dict[str, Callable], default: str = "bpe"
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `--tokenizer`, by default the checkpoint's: loaded, or made by one of `trainers`."""
    kind = options.tokenizer or model.model_name_or_path or default
    if kind not in trainers:
        return load_tokenizer(kind)
    if "train" not in splits:
        raise InputError(f"`--tokenizer {kind}` needs a training text: give one, or another tokenizer.")
    subwords = model.presets[model.preset or DEFAULT_PRESET].subword_vocab_size
    size = options.vocab_size or (None if kind == "word" else subwords)
    return trainers[kind](texts_of(splits["train"]), size)


def tokenize_splits(splits: Splits, tokenizer: PreTrainedTokenizerBase, options: TextOptions, seed: int) -> TextData:
    """Tokenize every split; a streamed training text while it is read, shuffled with `seed`."""
    streams, streamed = {}, None
    for split, rows in splits.items():
        if isinstance(rows, IterableDataset) and split == "train":
            rows = rows.shuffle(buffer_size=options.shuffle_buffer, seed=seed) if options.shuffle_buffer > 1 else rows
            streamed = tokenize(rows, tokenizer)
            checked = TokenStream.from_rows(streamed.take(CHECKED_ROWS))
        else:
            checked = TokenStream.from_rows(tokenize(rows, tokenizer, options.num_workers or os.cpu_count() or 1))
            streams[split] = checked
        if len(checked) < 2:
            raise InputError(f"The {split} text has {len(checked)} tokens: give a longer one.")
        has_unknown = tokenizer.unk_token_id not in (None, tokenizer.eos_token_id)
        unknown = np.mean(checked.ids == tokenizer.unk_token_id) if has_unknown else 0.0
        if unknown > MAX_UNKNOWN:
            raise InputError(f"`--tokenizer` does not know {unknown:.0%} of the {split} text: choose another.")
    return TextData(streams, streamed)


def find_block_size(model: PreTrainedModel, requested: int | None) -> int:
    """Return the tokens per block: `requested`, or for `None` the model's maximum, up to `DEFAULT_BLOCK_SIZE`."""
    longest, ngram_size = max_positions(model) or math.inf, model.config.ngram_size
    block_size = requested or min(longest, DEFAULT_BLOCK_SIZE)
    if not ngram_size < block_size <= longest:
        raise InputError(f"`--block_size` must be more than N = {ngram_size} and at most {longest}, got {block_size}.")
    return block_size
