"""The data of a masked language modeling run: blocks with masked words, to train and to evaluate on."""

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
    Running text with masked words to predict.

    Args:
        masking (`Masking`): Which words are masked.
    """

    masking: Masking | None = None

    def blocks(self, seed: int, repeats: bool = False) -> MaskedBlocks | StreamedMaskedBlocks:
        """The text to train on; a text that is streamed ends, unless it `repeats`."""
        if self.streamed is not None:
            blocks = StreamedBlocks(self.streamed, self.block_size - FRAME)
            return StreamedMaskedBlocks(blocks, self.masking, seed, repeats)
        return MaskedBlocks(self.streams["train"], self.block_size, self.masking, seed)

    def texts(self) -> dict[str, MaskedText]:
        """The texts to evaluate on."""
        return {
            split: MaskedText(stream, self.block_size, self.masking)
            for split, stream in self.streams.items()
            if split != "train"
        }


def find_mlm_tokenizer(
    splits: Splits, data: MlmDataArguments, model: MlmModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """The run's own tokenizer if it has one already, else what was asked for, trained on the text if need be."""
    vocab_size = data.vocab_size or MLM_PRESETS[model.preset or DEFAULT_PRESET].subword_vocab_size
    trainers = {"bpe": lambda texts: train_masked_tokenizer(texts, vocab_size)}
    return train_or_load_tokenizer(data.tokenizer or model.model_name_or_path or "bpe", trainers, splits, folder)


def check_block_size(block_size: int) -> None:
    """Check that a block has room for words between its special tokens."""
    if block_size <= FRAME:
        raise InputError(f"Blocks of {block_size} tokens have no room for words: raise `--block_size`.")
