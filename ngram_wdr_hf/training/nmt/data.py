"""The data of a translation run: which pairs, which tokenizer, as batches of tokens."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.errors import InputError
from ...data.grammar import english_german
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
from ...data.tokenizer import load_tokenizer, train_sentence_tokenizer
from ..common.model import positions
from ..common.presets import DEFAULT_PRESET
from .arguments import NmtDataArguments, NmtModelArguments
from .presets import NMT_PRESETS

Tell = Callable[[str], None]


@dataclass
class NmtData:
    """
    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, trained or loaded.
        texts (`dict[str, Dataset]`): The pairs by split, `source` and `target`; a test set may have no targets.
        batches (`dict[str, PairBatches]`): Their tokens, of the splits that have targets.
        longest (`int`, *optional*): How many tokens the model can see; `None` if there is no end.
    """

    tokenizer: PreTrainedTokenizerBase
    texts: dict[str, Dataset]
    batches: dict[str, PairBatches]
    longest: int | None


def load_pairs(arguments: NmtDataArguments, do_train: bool, tell: Tell) -> dict[str, Dataset]:
    """The pairs by split; without any option, those of the grammar."""
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
        raise InputError("There is nothing to train on: give training pairs, or set `--do_train false`.")
    for split, rows in splits.items():
        if split != "test" and not has_references(rows):
            raise InputError(f"The {split} set has no translations: give a `--{split}_target`.")
    splits = reverse(splits) if arguments.reverse else splits
    splits = hold_out_pairs(drop_empty(splits, tell), arguments.validation_percentage)
    return splits if do_train else {split: rows for split, rows in splits.items() if split != "train"}


def find_nmt_tokenizer(
    splits: dict[str, Dataset], data: NmtDataArguments, model: NmtModelArguments, folder: Path | None
) -> PreTrainedTokenizerBase:
    """The run's own tokenizer if it has one already, else what was asked for, trained on the pairs if need be."""
    if folder is not None and (folder / "tokenizer.json").exists():
        return load_tokenizer(str(folder))
    kind = data.tokenizer or model.model_name_or_path or "bpe"
    if kind == "bpe":
        if "train" not in splits:
            raise InputError("`--tokenizer bpe` is trained on training pairs, and there are none: leave it out.")
        preset = NMT_PRESETS[model.preset or DEFAULT_PRESET]
        return train_sentence_tokenizer(texts_of_pairs(splits["train"]), data.vocab_size or preset.subword_vocab_size)
    tokenizer = load_tokenizer(kind)
    if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
        raise InputError(f"The tokenizer in {kind} has no padding or no end token: give one made for sentences.")
    if tokenizer.eos_token_id not in tokenizer(text_target=["a"])["input_ids"][0]:
        raise InputError(f"The tokenizer in {kind} does not end a sentence: give one made for sentences.")
    return tokenizer


def tokenize_nmt(
    splits: dict[str, Dataset],
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: NmtDataArguments,
    seed: int,
    tell: Tell,
) -> NmtData:
    """The batches of every split, and in a sentence each what had to be dropped or cut."""
    longest = positions(model)
    num_workers = data.num_workers or os.cpu_count() or 1
    batches = {}
    for split, rows in splits.items():
        if not has_references(rows):
            tell(f"The {split} set has no references: it is translated, and not scored.")
            continue
        tokens = tokenize_pairs(rows, tokenizer, split, longest, data.source_prefix or "", num_workers)
        if split == "train":
            kept = keep_lengths(tokens, data.max_length, data.max_length_ratio)
            if not len(kept):
                raise InputError("No training pair is short enough: raise `--max_length` or `--max_length_ratio`.")
            if len(kept) < len(tokens):
                tell(f"{len(tokens) - len(kept)} of {len(tokens)} train pairs were dropped: too long or too unequal.")
            tokens = kept
            _check_ngram_size(tokens, model.config.ngram_size)
        cut = sum(tokens["is_truncated"][:])
        if cut:
            tell(f"{cut} of {len(tokens)} {split} pairs were cut to the {longest} tokens that the model can see.")
        batches[split] = PairBatches(tokens, data.batch_tokens, tokenizer.pad_token_id, seed)
        share = batches[split].padding_share
        tell(f"{split}: {len(tokens):,} pairs in {len(batches[split]):,} batches, {share:.0%} of them padding.")
    return NmtData(tokenizer, splits, batches, longest)


def _check_ngram_size(tokens: Dataset, ngram_size: int) -> None:
    longest = side_lengths(tokens)[:, 1].max()
    if longest < ngram_size:
        raise InputError(
            f"The longest train target has {longest} tokens, fewer than N = {ngram_size}: give longer "
            "sentences or a smaller `--ngram_size`."
        )
