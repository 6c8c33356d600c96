"""Data of a masked language modeling run: blocks with masked tokens."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.masking import FRAME, MaskedBlocks, MaskedText, Masking, StreamedMaskedBlocks
from ...data.token_stream import StreamedBlocks
from ...data.tokenizers import train_masked_tokenizer
from ..common.presets import DEFAULT_PRESET
from ..common.text_data import Splits, TextData, train_or_load_tokenizer
from .arguments import MlmDataArguments, MlmModelArguments
from .presets import MLM_PRESETS


@dataclass
class MlmData(TextData):
    """
    Tokenized text for masked language modeling, with the other fields of `TextData`.

    Args:
        masking (`Masking`): Which tokens are masked, and what replaces them. Required, despite the default `None`.
    """

    masking: Masking | None = None

    def blocks(self, seed: int) -> MaskedBlocks | StreamedMaskedBlocks:
        """
        Return the training text in masked blocks of `block_size` tokens, streamed if the text is. `seed` is that of
        the masks.
        """
        if self.streamed is not None:
            blocks = StreamedBlocks(self.streamed, self.block_size - FRAME)
            return StreamedMaskedBlocks(blocks, self.masking, seed)
        return MaskedBlocks(self.streams["train"], self.block_size, self.masking, seed)

    def texts(self) -> dict[str, MaskedText]:
        """Return the evaluation texts with their fixed masks by split, without `train`."""
        return {
            split: MaskedText(stream, self.block_size, self.masking)
            for split, stream in self.streams.items()
            if split != "train"
        }


def find_mlm_tokenizer(
    splits: Splits, data: MlmDataArguments, model: MlmModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """
    Return the tokenizer in the run's `folder`, if there is one; else load or train the one that `--tokenizer` selects,
    by default the checkpoint's or `bpe`. `folder=None` means that there is no run.
    """
    vocab_size = data.vocab_size or MLM_PRESETS[model.preset or DEFAULT_PRESET].subword_vocab_size
    trainers = {"bpe": lambda texts: train_masked_tokenizer(texts, vocab_size)}
    return train_or_load_tokenizer(data.tokenizer or model.model_name_or_path or "bpe", trainers, splits, folder)


def check_maskable(data: MlmData) -> None:
    """Raise an `InputError` if a text has only special tokens, which are never masked."""
    special = data.tokenizer.all_special_ids
    for split, stream in data.streams.items():
        if all(np.isin(piece, special).all() for piece in stream.pieces):
            raise InputError(f"The {split} text has no token to mask, only special ones: choose another text.")


def check_block_size(block_size: int) -> None:
    """Raise an `InputError` if a block has no room for text between CLS and SEP."""
    if block_size <= FRAME:
        raise InputError(
            f"`--block_size` must be greater than {FRAME}, the number of special tokens, got {block_size}."
        )
