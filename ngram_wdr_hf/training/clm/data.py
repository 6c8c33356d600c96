"""Data of a language modeling run: training blocks and evaluation windows."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch.utils.data import ConcatDataset, Dataset
from transformers import PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.rows import EvaluationRows, TrainingRows, total_length
from ...data.token_stream import EvaluationWindows, StreamedBlocks, TrainingBlocks, evaluation_windows
from ...data.tokenizers import train_bpe_tokenizer, train_word_tokenizer
from ..common.arguments import ModelArguments
from ..common.presets import DEFAULT_PRESET
from ..common.text_data import Splits, TextData, train_or_load_tokenizer
from .arguments import ClmDataArguments
from .presets import CLM_PRESETS


@dataclass
class ClmData(TextData):
    """
    Tokenized text for causal language modeling, with its training blocks and evaluation windows.

    Args:
        own_rows (`list[np.ndarray]`, *optional*): Training text that the model wrote itself, in rows.
        held_out_rows (`list[np.ndarray]`, *optional*): The rows of it for validation; empty if there is another text.
    """

    own_rows: list[np.ndarray] = field(default_factory=list)
    held_out_rows: list[np.ndarray] = field(default_factory=list)

    def add_own_text(self, rows: list[np.ndarray], validation_percentage: float) -> None:
        """Add text that the model wrote. Without a validation text, the last rows are held out for it."""
        if "validation" not in self.streams:
            count = max(1, round(len(rows) * validation_percentage / 100))
            rows, self.held_out_rows = rows[:-count], rows[-count:]
        if not rows:
            raise InputError("`--self_generated` must be enough for several rows: raise it.")
        self.own_rows = rows

    def counts(self) -> dict[str, str]:
        written = {"train": self.own_rows, "validation": self.held_out_rows}
        counts = super().counts()
        for split, rows in written.items():
            if rows:
                own = f"{total_length(rows):,} tokens of its own text"
                counts[split] = f"{counts[split]} and {own}" if split in counts else own
        return counts

    def training_tokens(self) -> list[np.ndarray]:
        """Return the token ids of the training text, in pieces; empty if it is streamed."""
        pieces = self.streams["train"].pieces if "train" in self.streams else []
        return [*pieces, *self.own_rows]

    def training_set(self) -> Dataset | StreamedBlocks:
        """
        Return the training text: in blocks of `block_size` tokens, streamed if the text is, and in the rows that the
        model wrote.
        """
        if self.streamed is not None:
            return StreamedBlocks(self.streamed, self.block_size)
        parts = [TrainingRows(self.own_rows)] if self.own_rows else []
        if "train" in self.streams:
            parts.append(TrainingBlocks(self.streams["train"], self.block_size))
        return parts[0] if len(parts) == 1 else ConcatDataset(parts)

    def windows(self, stride: int | None) -> dict[str, EvaluationWindows | EvaluationRows]:
        """
        Return the evaluation windows of `block_size` tokens by split, without `train`; for text that the model wrote,
        its rows. `stride=None` means `block_size`.
        """
        windows = {
            split: evaluation_windows(stream, self.tokenizer, self.block_size, stride)
            for split, stream in self.streams.items()
            if split != "train"
        }
        if self.held_out_rows:
            return {"validation": EvaluationRows(self.held_out_rows, self.tokenizer), **windows}
        return windows


def find_clm_tokenizer(
    splits: Splits, data: ClmDataArguments, model: ModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """
    Return the tokenizer in the run's `folder`, if there is one; else load or train the one that `--tokenizer` selects,
    by default the checkpoint's, `bpe` for the built-in text, or `word`. `folder=None` means that there is no run.
    """
    is_default_text = data.train_file is None and data.dataset_name is None
    subwords = data.vocab_size or CLM_PRESETS[model.preset or DEFAULT_PRESET].subword_vocab_size
    trainers = {
        "word": lambda texts: train_word_tokenizer(texts, data.vocab_size),
        "bpe": lambda texts: train_bpe_tokenizer(texts, subwords),
    }
    kind = data.tokenizer or model.model_name_or_path or ("bpe" if is_default_text else "word")
    return train_or_load_tokenizer(kind, trainers, splits, folder)


def check_prompt(prompt: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise an `InputError` if a prompt has no tokens. `None`, the default prompt, is fine."""
    if prompt is not None and not tokenizer(prompt, add_special_tokens=False).input_ids:
        raise InputError(f"`--prompt` must have at least one token, got {prompt!r}. Give it a word.")
