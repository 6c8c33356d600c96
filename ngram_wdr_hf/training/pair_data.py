"""Sentence pairs for translation models: options, loading, tokenizer, batches."""

import os
from dataclasses import dataclass
from typing import ClassVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data import pairs
from ..data.english_german import english_german
from ..data.errors import InputError
from ..data.pair_batches import PairBatches, keep_lengths, tokenize_pairs
from ..data.text import SPLITS, hold_out
from ..data.tokenizers import train_sentence_tokenizer
from ..evaluation.models import max_positions
from .options import EnsembleOptions, ModelOptions, RunTrainingArguments, optional
from .text_data import find_tokenizer

FILES = tuple(f"{split}_{side}" for split in SPLITS for side in ("source", "target"))


@dataclass
class PairOptions(EnsembleOptions):
    """The sentence pairs, their tokenizer and batches, the ensemble, and the translations."""

    # As in `TextOptions`.
    sources: ClassVar[tuple[str, ...]] = (*FILES, "dataset_name")
    model_options: ClassVar[set[str]] = {"source_prefix"}

    train_source: list[str] | None = optional("Text files, a sentence per line. Default: the built-in pairs.")
    train_target: list[str] | None = optional("Their translations, line by line.")
    validation_source: list[str] | None = optional("The same for validation. Default: a part of the training pairs.")
    validation_target: list[str] | None = optional("Their translations.")
    test_source: list[str] | None = optional("The same for the final evaluation. Default: none.")
    test_target: list[str] | None = optional("Their translations; without them, the test set is not scored.")
    dataset_name: str | None = optional(
        "Dataset instead of text files: a name on the Hub, or a folder, such as one with the JSON lines train.jsonl, "
        'validation.jsonl and test.jsonl: `{"en": ..., "de": ...}`.'
    )
    dataset_config: str | None = optional("Configuration of `--dataset_name`, if it has several.")
    source_lang: str | None = optional("Field of `--dataset_name` with the source, such as `en`.")
    target_lang: str | None = optional("Field of `--dataset_name` with the target, such as `de`.")
    source_prefix: str | None = optional("Text before every source, for T5. Default: none, or the evaluated run's.")
    validation_percentage: float = HfArg(default=2.0, help="Percentage of the pairs to hold out by default.")
    tokenizer: str | None = optional(
        "`bpe`: one for both languages, trained on the pairs; or a name or folder. Default: the checkpoint's or `bpe`."
    )
    vocab_size: int | None = optional("Maximum vocabulary of a trained tokenizer. Default: the preset's.")
    max_length: int | None = optional("Maximum tokens of a training source or target. Default: the preset's, if any.")
    max_length_ratio: float | None = optional("Maximum ratio of their lengths. Default: the preset's, if any.")
    batch_tokens: int = HfArg(
        default=4096, help="Maximum tokens per batch and process, of the longer side; in translation, times the beams."
    )
    num_workers: int | None = optional("Processes for tokenization. Default: one per core.")
    num_beams: int | None = optional("Number of beams; 1 is greedy search. Default: the checkpoint's, else 5.")
    length_penalty: float | None = optional("Length penalty of beam search. Default: the checkpoint's, else 1.")
    num_examples: int = HfArg(default=5, help="Number of test sentences to show with their translations.")
    translate: str | None = optional("With `--do_train false`: file to translate, line by line, to standard output.")

    def __post_init__(self):
        super().__post_init__()
        self.check_at_least(1, "vocab_size", "max_length_ratio", "batch_tokens", "num_workers", "num_beams")
        self.check_at_least(2, "max_length")
        self.check_at_least(0, "num_examples")
        if self.dataset_name and any(getattr(self, name) for name in FILES):
            raise InputError("`--dataset_name` cannot be combined with text files: give only one of them.")


def load_pairs(options: PairOptions, training: RunTrainingArguments) -> pairs.Splits:
    """Load the pairs by split, or generate them, without empty sides; hold out validation pairs if there are none."""
    sides = {split: [getattr(options, f"{split}_{side}") or [] for side in ("source", "target")] for split in SPLITS}
    files = {split: paths for split, paths in sides.items() if any(paths)}
    if options.dataset_name:
        languages = options.source_lang, options.target_lang
        splits = pairs.load_pair_dataset(options.dataset_name, options.dataset_config, *languages)
    else:
        splits = pairs.load_pair_files(files) if files else english_german()
    if training.do_train and "train" not in splits:
        raise InputError("Training pairs are missing: give `--train_source` or a `--dataset_name` with a train split.")
    for split, rows in splits.items():
        if split != "test" and not pairs.has_references(rows):
            raise InputError(f"`--{split}_target` is missing: give the translations of the {split} set.")
    splits = hold_out(pairs.drop_empty(splits), options.validation_percentage, shuffle=True)
    return splits if training.do_train else {split: rows for split, rows in splits.items() if split != "train"}


def nmt_tokenizer(options: PairOptions, model: ModelOptions, splits: pairs.Splits) -> PreTrainedTokenizerBase:
    """Return the tokenizer of `find_tokenizer`, if it suits a translation model."""
    trainers = {"bpe": lambda _, size: train_sentence_tokenizer(pairs.texts_of_pairs(splits["train"]), size)}
    tokenizer = find_tokenizer(options, model, splits, trainers)
    if tokenizer.pad_token_id is None or tokenizer.eos_token_id not in tokenizer(text_target=["a"])["input_ids"][0]:
        raise InputError(f"`--tokenizer {tokenizer.name_or_path}` has no padding token, or adds no end token.")
    return tokenizer


def tokenize_splits(
    splits: pairs.Splits, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, options: PairOptions, seed: int
) -> dict[str, PairBatches]:
    """Tokenize and batch every split with targets; truncate for the model, and keep `--max_length` in training."""
    longest, num_workers, batches = max_positions(model), options.num_workers or os.cpu_count() or 1, {}
    for split, rows in splits.items():
        if pairs.has_references(rows):
            tokens = tokenize_pairs(rows, tokenizer, longest, options.source_prefix or "", num_workers)
            if split == "train":
                tokens = keep_lengths(tokens, options.max_length, options.max_length_ratio)
            if not len(tokens):
                raise InputError("No training pair is within `--max_length` and `--max_length_ratio`: raise them.")
            batches[split] = PairBatches(tokens, options.batch_tokens, tokenizer.pad_token_id, seed)
    return batches
