"""Data of a language modeling run: training blocks and evaluation windows."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.stream import EvaluationWindows, StreamedBlocks, TrainingBlocks, evaluation_windows
from ...data.tokenizer import train_bpe_tokenizer, train_word_tokenizer
from ..common.arguments import ModelArguments
from ..common.presets import DEFAULT_PRESET
from ..common.text_data import Splits, TextData, train_or_load_tokenizer
from .arguments import ClmDataArguments
from .presets import CLM_PRESETS


class ClmData(TextData):
    """Tokenized text for causal language modeling."""

    def blocks(self) -> TrainingBlocks | StreamedBlocks:
        """Return the blocks to train on."""
        if self.streamed is not None:
            return StreamedBlocks(self.streamed, self.block_size)
        return TrainingBlocks(self.streams["train"], self.block_size)

    def windows(self, stride: int | None) -> dict[str, EvaluationWindows]:
        """Return the evaluation windows by split."""
        return {
            split: evaluation_windows(stream, self.tokenizer, self.block_size, stride)
            for split, stream in self.streams.items()
            if split != "train"
        }


def find_clm_tokenizer(
    splits: Splits, data: ClmDataArguments, model: ModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the run, or load or train the one that `--tokenizer` selects."""
    is_default_text = data.train_file is None and data.dataset_name is None
    subwords = data.vocab_size or CLM_PRESETS[model.preset or DEFAULT_PRESET].subword_vocab_size
    trainers = {
        "word": lambda texts: train_word_tokenizer(texts, data.vocab_size),
        "bpe": lambda texts: train_bpe_tokenizer(texts, subwords),
    }
    kind = data.tokenizer or model.model_name_or_path or ("bpe" if is_default_text else "word")
    return train_or_load_tokenizer(kind, trainers, splits, folder)


def check_prompt(prompt: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that a prompt has at least one token."""
    if prompt is not None and not tokenizer(prompt, add_special_tokens=False).input_ids:
        raise InputError(f"`--prompt` must have at least one token, got {prompt!r}. Give it a word.")
