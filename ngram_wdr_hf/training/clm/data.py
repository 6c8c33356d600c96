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
    """Tokenized text for causal language modeling, with its training blocks and evaluation windows."""

    def blocks(self) -> TrainingBlocks | StreamedBlocks:
        """Return the training text in blocks of `block_size` tokens, streamed if the text is."""
        if self.streamed is not None:
            return StreamedBlocks(self.streamed, self.block_size)
        return TrainingBlocks(self.streams["train"], self.block_size)

    def windows(self, stride: int | None) -> dict[str, EvaluationWindows]:
        """
        Return the evaluation windows of `block_size` tokens by split, without `train`. `stride=None` means
        `block_size`.
        """
        return {
            split: evaluation_windows(stream, self.tokenizer, self.block_size, stride)
            for split, stream in self.streams.items()
            if split != "train"
        }


def find_clm_tokenizer(
    splits: Splits, data: ClmDataArguments, model: ModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """
    Return the tokenizer in the run's `folder`, if there is one; else load or train the one that `--tokenizer` selects,
    by default the checkpoint's, `bpe` for Python's English, or `word`. `folder=None` means that there is no run.
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
