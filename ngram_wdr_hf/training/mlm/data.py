"""The data of a masked language modeling run."""

from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.masking import FRAME, MaskedBlocks, MaskedText, Masking, StreamedMaskedBlocks
from ...data.stream import StreamedBlocks
from ...data.tokenizer import train_masked_tokenizer
from ..clm.data import ClmData, train_or_load_tokenizer
from ..common.presets import DEFAULT_PRESET
from .arguments import MlmDataArguments, MlmModelArguments
from .presets import MLM_PRESETS


@dataclass
class MlmData(ClmData):
    """
    Args:
        masking (`Masking`): Which words are masked.
    """

    masking: Masking | None = None

    def blocks(self, seed: int, repeats: bool = False) -> MaskedBlocks | StreamedMaskedBlocks:
        """What is trained on; a text that is streamed ends, unless it `repeats`."""
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
    splits: dict[str, Dataset | IterableDataset], data: MlmDataArguments, model: MlmModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """The run's own tokenizer if it has one already, else what was asked for, trained on the text if need be."""
    vocab_size = data.vocab_size or MLM_PRESETS[model.preset or DEFAULT_PRESET].subword_vocab_size
    trainers = {"bpe": lambda texts: train_masked_tokenizer(texts, vocab_size)}
    return train_or_load_tokenizer(data.tokenizer or model.model_name_or_path or "bpe", trainers, splits, folder)


def check_block_size(block_size: int) -> None:
    if block_size <= FRAME:
        raise InputError(f"Blocks of {block_size} tokens have no room for words: raise `--block_size`.")
