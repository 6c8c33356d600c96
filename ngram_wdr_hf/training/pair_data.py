"""Sentence pairs for translation models: options, loading, tokenizer, batches."""

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ..data import pairs
from ..data.english_german import english_german
from ..data.errors import InputError
from ..data.pair_batches import PairBatches, keep_lengths, side_lengths, tokenize_pairs
from ..data.text import SPLITS
from ..data.tokenizers import train_sentence_tokenizer
from ..evaluation.models import max_positions
from ..evaluation.scores import processes
from .options import EnsembleOptions, ModelOptions, RunTrainingArguments, check_at_least, optional
from .presets import DEFAULT_PRESET, NMT_PRESETS
from .text_data import find_tokenizer


@dataclass
class PairOptions(EnsembleOptions):
    """The sentence pairs, their tokenizer and batches, the ensemble, and the translations."""

    # The options that name pairs. An evaluation without them reads the pairs of the evaluated run.
    sources: ClassVar[tuple[str, ...]] = (
        *(f"{split}_{kind}" for split in SPLITS for kind in ("source", "target", "file")),
        "dataset_name",
    )
    # The options that an evaluation takes from the evaluated run with other pairs, too.
    model_options: ClassVar[set[str]] = {"source_prefix"}

    train_source: list[str] | None = optional(
        "Text files to train on, a source sentence per line. Default, without any data option: English and German "
        "dates, amounts and names, from Unicode's locale data."
    )
    train_target: list[str] | None = optional("Text files with the translations of `--train_source`, line by line.")
    validation_source: list[str] | None = optional(
        "Text files to select the best checkpoint and the ensemble on. Default: a part of the training pairs."
    )
    validation_target: list[str] | None = optional("The translations of `--validation_source`.")
    test_source: list[str] | None = optional("Text files for the final evaluation. Default: none.")
    test_target: list[str] | None = optional(
        "The translations of `--test_source`. Without them, the test set is translated, but not scored."
    )
    train_file: list[str] | None = optional(
        'JSON lines instead of text files: `{"en": ..., "de": ...}`, at the top level or in a field `translation`.'
    )
    validation_file: list[str] | None = optional("JSON lines for validation.")
    test_file: list[str] | None = optional("JSON lines for the final evaluation.")
    dataset_name: str | None = optional("Dataset instead of files, with its splits: a name on the Hub or a folder.")
    dataset_config: str | None = optional("Configuration of `--dataset_name`, if it has several.")
    source_lang: str | None = optional("Field of the source language in JSON lines and datasets, such as `en`.")
    target_lang: str | None = optional("Field of the target language in JSON lines and datasets, such as `de`.")
    reverse: bool = HfArg(default=False, help="Swap source and target: translate the other way.")
    source_prefix: str | None = optional(
        "Text to put before every source; T5 expects `translate English to German: `. Default: none; in an "
        "evaluation, that of the run."
    )
    validation_percentage: float = HfArg(
        default=2.0, help="Percentage of the training pairs to hold out if there is no validation set."
    )
    tokenizer: str | None = optional(
        "`bpe`: one byte-level BPE for both languages, trained on the pairs; otherwise a tokenizer's name or folder. "
        "Default: the checkpoint's, else `bpe`."
    )
    vocab_size: int | None = optional("Maximum vocabulary of a trained tokenizer. Default: the preset's.")
    max_length: int | None = optional(
        "Drop training pairs with more tokens than this on either side. Default: the preset's, else no limit."
    )
    max_length_ratio: float | None = optional(
        "Drop training pairs whose longer side exceeds this many times the shorter. Default: as for `--max_length`."
    )
    batch_tokens: int = HfArg(
        default=4096,
        help="Maximum number of tokens per batch and process, padding included, on the side with more tokens. In "
        "translation, the sources times the beams.",
    )
    num_workers: int | None = optional("Processes for tokenization. Default: one per core.")
    num_beams: int | None = optional("Number of beams; 1 is greedy search. Default: the checkpoint's, else 5.")
    length_penalty: float | None = optional(
        "Length penalty of beam search: scores are divided by length ** penalty. Default: the checkpoint's, else 1."
    )
    num_examples: int = HfArg(default=5, help="Number of test sentences to show with their translations.")
    translate: str | None = optional(
        "File to translate, one sentence per line, instead of evaluating; with `--do_train false`."
    )
    translate_to: str | None = optional("Output file of `--translate`. Default: standard output.")

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "vocab_size", "max_length_ratio", "batch_tokens", "num_workers", "num_beams")
        check_at_least(self, 2, "max_length")
        check_at_least(self, 0, "num_examples")
        kinds = {name.partition("_")[2].replace("target", "source") for name in self.sources if getattr(self, name)}
        if len(kinds) > 1:
            raise InputError(
                "`--dataset_name`, text files (`--train_source`) and JSON lines (`--train_file`) cannot be combined: "
                "give only one of them."
            )
        if self.translate_to is not None and self.translate is None:
            raise InputError("`--translate_to` needs `--translate FILE`: set the file to translate.")


def notify(message: str) -> None:
    """Print a message, in the first process."""
    if processes()[0] == 0:
        print(message)


def load_pairs(options: PairOptions, training: RunTrainingArguments) -> dict[str, Dataset]:
    """
    Load the pairs by split; without any data option, generate them from Unicode's locale data. Pairs with an empty
    side are dropped. If there is no validation set, a part of the training set is held out for it. Without training,
    the training split is left out of the result.
    """
    files, sides = {}, {}
    for split in SPLITS:
        source, target, file = (getattr(options, f"{split}_{kind}") or [] for kind in ("source", "target", "file"))
        files |= {split: file} if file else {}
        sides |= {split: (source, target)} if source or target else {}
    languages = options.source_lang, options.target_lang
    if options.dataset_name:
        splits = pairs.load_pair_dataset(options.dataset_name, options.dataset_config, *languages)
    elif files:
        splits = pairs.load_json_pairs(files, *languages)
    else:
        splits = pairs.load_pair_files(sides) if sides else english_german()
    if training.do_train and "train" not in splits:
        raise InputError("Training pairs are missing: give `--train_source`, `--train_file` or a `--dataset_name`.")
    if "validation" in splits and not training.do_train:
        splits.pop("train", None)
    for split, rows in splits.items():
        if split != "test" and not pairs.has_references(rows):
            raise InputError(f"`--{split}_target` is missing: give the translations of the {split} set.")
    splits = pairs.reverse(splits) if options.reverse else splits
    splits = pairs.hold_out_pairs(pairs.drop_empty(splits, notify), options.validation_percentage)
    return splits if training.do_train else {split: rows for split, rows in splits.items() if split != "train"}


def nmt_tokenizer(options: PairOptions, model: ModelOptions, splits: dict[str, Dataset]) -> PreTrainedTokenizerBase:
    """Load or train the tokenizer that `--tokenizer` selects, by default the checkpoint's or `bpe`."""

    def train(_: Any) -> PreTrainedTokenizerBase:
        size = options.vocab_size or NMT_PRESETS[model.preset or DEFAULT_PRESET].subword_vocab_size
        return train_sentence_tokenizer(pairs.texts_of_pairs(splits["train"]), size)

    kind = options.tokenizer or model.model_name_or_path or "bpe"
    tokenizer = find_tokenizer(kind, {"bpe": train}, splits)
    if tokenizer.pad_token_id is None or tokenizer.eos_token_id not in tokenizer(text_target=["a"])["input_ids"][0]:
        raise InputError(f"`--tokenizer {kind}` has no padding or adds no end token: choose one for translation.")
    return tokenizer


def tokenize_splits(
    splits: dict[str, Dataset],
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    options: PairOptions,
    seed: int,
) -> dict[str, PairBatches]:
    """
    Tokenize and batch every split with targets. Training pairs beyond `--max_length` or `--max_length_ratio` are
    dropped; pairs that are too long for the model are truncated.
    """
    longest, num_workers, batches = max_positions(model), options.num_workers or os.cpu_count() or 1, {}
    for split, rows in splits.items():
        if not pairs.has_references(rows):
            notify(f"{split}: no references, so translations are not scored.")
            continue
        tokens = tokenize_pairs(rows, tokenizer, longest, options.source_prefix or "", num_workers)
        if split == "train":
            tokens = keep_lengths(tokens, options.max_length, options.max_length_ratio)
            ngram_size = model.config.ngram_size
            if not len(tokens) or side_lengths(tokens)[:, 1].max() < ngram_size:
                raise InputError(
                    f"No training target has {ngram_size} tokens, the N of the model, within `--max_length` and "
                    "`--max_length_ratio`: give longer sentences, raise these, or lower `--ngram_size`."
                )
        batches[split] = PairBatches(tokens, options.batch_tokens, tokenizer.pad_token_id, seed)
        notify(
            f"{split}: {len(tokens):,} of {len(rows):,} pairs in {len(batches[split]):,} batches, "
            f"{batches[split].padding_share:.0%} padding; {sum(tokens['is_truncated'][:]):,} truncated."
        )
    return batches
