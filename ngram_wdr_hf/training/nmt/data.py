"""Data of a translation run: sentence pairs, tokenizer, batches."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.english_german import english_german
from ...data.errors import InputError
from ...data.pair_batches import PairBatches, keep_lengths, side_lengths, tokenize_pairs
from ...data.pairs import (
    Languages,
    drop_empty,
    has_references,
    hold_out_pairs,
    load_json_pairs,
    load_pair_dataset,
    load_pair_files,
    reverse,
    texts_of_pairs,
)
from ...data.text import SPLITS
from ...data.tokenizers import load_tokenizer, train_sentence_tokenizer
from ...evaluation.lengths import max_positions
from ..common.presets import DEFAULT_PRESET
from .arguments import NmtDataArguments, NmtModelArguments
from .presets import NMT_PRESETS

Notify = Callable[[str], None]


@dataclass
class NmtData:
    """
    Sentence pairs as text and as batches of tokens.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        texts (`dict[str, Dataset]`): The pairs by split, `source` and `target`; a test set may have no targets.
        batches (`dict[str, PairBatches]`): The tokens by split, for splits with targets.
        longest (`int`, *optional*): The longest input of the model in tokens; `None` if there is no limit.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: dict[str, Dataset]
    batches: dict[str, PairBatches]
    longest: int | None

    def counts(self) -> dict[str, str]:
        """Return the number of pairs of each split, with the unit."""
        return {split: f"{len(pairs):,} pairs" for split, pairs in self.texts.items()}


def load_pairs(arguments: NmtDataArguments, do_train: bool, notify: Notify) -> dict[str, Dataset]:
    """
    Load the pairs by split; without any data option, generate them from Unicode's locale data. Pairs with an empty
    side are dropped; `notify` gets their number. If there is no validation set, a part of the training set is held
    out for it. Without training, the training split is left out of the result. A training set needs no targets if
    there is a validation set and the model is not trained.
    """
    languages = Languages(arguments.source_lang, arguments.target_lang)
    by_side = {
        split: tuple(getattr(arguments, f"{split}_{side}") or () for side in ("source", "target")) for split in SPLITS
    }
    by_side = {split: sides for split, sides in by_side.items() if any(sides)}
    by_file = {split: getattr(arguments, f"{split}_file") for split in SPLITS}
    by_file = {split: paths for split, paths in by_file.items() if paths}
    if arguments.dataset_name:
        splits = load_pair_dataset(arguments.dataset_name, arguments.dataset_config, languages)
    elif by_file:
        splits = load_json_pairs(by_file, languages)
    elif by_side:
        splits = load_pair_files(by_side)
    else:
        splits = english_german()
    if do_train and "train" not in splits:
        raise InputError(
            "`--train_source`, `--train_file` or `--dataset_name` must provide training pairs: give some, or set "
            "`--do_train false` to only evaluate."
        )
    needs_targets = {"train", "validation"}
    if "validation" in splits and not do_train:
        needs_targets.remove("train")
    for split, rows in splits.items():
        if split in needs_targets and not has_references(rows):
            raise InputError(f"`--{split}_target` is missing: give the translations of the {split} set.")
    splits = reverse(splits) if arguments.reverse else splits
    splits = hold_out_pairs(drop_empty(splits, notify), arguments.validation_percentage)
    return splits if do_train else {split: rows for split, rows in splits.items() if split != "train"}


def find_nmt_tokenizer(
    splits: dict[str, Dataset], data: NmtDataArguments, model: NmtModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """
    Return the tokenizer in the run's `folder`, if there is one; else load or train the one that `--tokenizer` selects,
    by default the checkpoint's or `bpe`. `folder=None` means that there is no run. Raise an `InputError` for a
    tokenizer without padding or end token.
    """
    if folder is not None and (folder / "tokenizer.json").exists():
        return load_tokenizer(str(folder))
    kind = data.tokenizer or model.model_name_or_path or "bpe"
    if kind == "bpe":
        if "train" not in splits:
            raise InputError(
                "`--tokenizer bpe` needs training pairs to train on. Remove the option, or give training pairs."
            )
        preset = NMT_PRESETS[model.preset or DEFAULT_PRESET]
        return train_sentence_tokenizer(texts_of_pairs(splits["train"]), data.vocab_size or preset.subword_vocab_size)
    tokenizer = load_tokenizer(kind)
    if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
        raise InputError(f"`--tokenizer {kind}` has no padding or end token. Choose a tokenizer for translation.")
    if tokenizer.eos_token_id not in tokenizer(text_target=["a"])["input_ids"][0]:
        raise InputError(f"`--tokenizer {kind}` adds no end token to a sentence. Choose a tokenizer for translation.")
    return tokenizer


def tokenize_nmt(
    splits: dict[str, Dataset],
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: NmtDataArguments,
    seed: int,
    notify: Notify,
) -> NmtData:
    """
    Tokenize and batch every split with targets. Training pairs beyond `--max_length` or `--max_length_ratio` are
    dropped; longer pairs than the model takes are truncated. `notify` gets a line about each, and the number of
    batches.
    """
    longest = max_positions(model)
    num_workers = data.num_workers or os.cpu_count() or 1
    batches = {}
    for split, rows in splits.items():
        if not has_references(rows):
            notify(f"{split}: no references, so translations are not scored.")
            continue
        tokens = tokenize_pairs(rows, tokenizer, split, longest, data.source_prefix or "", num_workers)
        if split == "train":
            kept = keep_lengths(tokens, data.max_length, data.max_length_ratio)
            if not len(kept):
                raise InputError("`--max_length` and `--max_length_ratio` drop all training pairs: raise them.")
            if len(kept) < len(tokens):
                notify(
                    f"train: dropped {len(tokens) - len(kept)} of {len(tokens)} pairs, too long or too unequal in "
                    "length."
                )
            tokens = kept
            _check_ngram_size(tokens, model.config.ngram_size)
        num_truncated = sum(tokens["is_truncated"][:])
        if num_truncated:
            notify(f"{split}: truncated {num_truncated} of {len(tokens)} pairs to the model's {longest} tokens.")
        batches[split] = PairBatches(tokens, data.batch_tokens, tokenizer.pad_token_id, seed)
        share = batches[split].padding_share
        notify(f"{split}: {len(tokens):,} pairs in {len(batches[split]):,} batches, {share:.0%} padding.")
    return NmtData(tokenizer, splits, batches, longest)


def _check_ngram_size(tokens: Dataset, ngram_size: int) -> None:
    longest = side_lengths(tokens)[:, 1].max()
    if longest < ngram_size:
        raise InputError(
            f"`--ngram_size {ngram_size}` needs a training target of at least {ngram_size} tokens, but the longest "
            f"has {longest}: give longer sentences or a smaller `--ngram_size`."
        )
