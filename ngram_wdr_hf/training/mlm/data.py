"""Data of a masked language modeling run: blocks with masked words."""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.masking import FRAME, MaskedBlocks, MaskedText, Masking, StreamedMaskedBlocks
from ...data.stream import StreamedBlocks
from ...data.tokenizer import train_masked_tokenizer
from ..common.presets import DEFAULT_PRESET
from ..common.text_data import Splits, TextData, train_or_load_tokenizer
from .arguments import MlmDataArguments, MlmModelArguments
from .presets import MLM_PRESETS


@dataclass
class MlmData(TextData):
    """
    Tokenized text with masked words to predict.

    Args:
        masking (`Masking`): Selects the words to mask.
    """

    masking: Masking | None = None

    def blocks(self, seed: int, repeats: bool = False) -> MaskedBlocks | StreamedMaskedBlocks:
        """Return the blocks to train on; with `repeats`, a streamed text starts again at its end."""
        if self.streamed is not None:
            blocks = StreamedBlocks(self.streamed, self.block_size - FRAME)
            return StreamedMaskedBlocks(blocks, self.masking, seed, repeats)
        return MaskedBlocks(self.streams["train"], self.block_size, self.masking, seed)

    def texts(self) -> dict[str, MaskedText]:
        """Return the evaluation texts by split."""
        return {
            split: MaskedText(stream, self.block_size, self.masking)
            for split, stream in self.streams.items()
            if split != "train"
        }


def find_mlm_tokenizer(
    splits: Splits, data: MlmDataArguments, model: MlmModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the run, or load or train the one that `--tokenizer` selects."""
    vocab_size = data.vocab_size or MLM_PRESETS[model.preset or DEFAULT_PRESET].subword_vocab_size
    trainers = {"bpe": lambda texts: train_masked_tokenizer(texts, vocab_size)}
    return train_or_load_tokenizer(data.tokenizer or model.model_name_or_path or "bpe", trainers, splits, folder)


def check_block_size(block_size: int) -> None:
    """Check that a block has room for text between its special tokens."""
    if block_size <= FRAME:
        raise InputError(
            f"`--block_size` must be greater than {FRAME}, the number of special tokens, got {block_size}."
        )
