"""Sentence pairs from parallel text files and datasets, as rows with `source` and `target`."""

from collections.abc import Sequence

from datasets import Dataset, Features, Value, load_dataset
from transformers.utils import logging

from .errors import InputError
from .text import known_splits

logger = logging.get_logger(__name__)
Splits = dict[str, Dataset]
PAIRS = Features({"source": Value("string"), "target": Value("string")})


def load_pair_files(files: dict[str, tuple[Sequence[str], Sequence[str]]]) -> Splits:
    """Load the source files and target files of each split, joined. Without target files, the targets are `None`."""
    splits = {}
    for split, (sources, targets) in files.items():
        source = read_lines(sources)
        target = read_lines(targets) if targets else [None] * len(source)
        if len(source) != len(target):
            counts = f"{', '.join(sources)} has {len(source)} lines, but {', '.join(targets)} has {len(target)}"
            raise InputError(f"{counts}: align them, so that each line has its translation.")
        splits[split] = Dataset.from_dict({"source": source, "target": target}, features=PAIRS)
    return splits


def read_lines(paths: Sequence[str]) -> list[str]:
    """Return the lines of all UTF-8 files one after the other, without their line ends. Empty lines are kept."""
    lines = []
    for path in paths:
        # Only line feeds end a line: other line breaks would shift the alignment.
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            lines += [line.rstrip("\r\n") for line in file]
    return lines


def load_pair_dataset(name: str, config: str | None, source_lang: str | None, target_lang: str | None) -> Splits:
    """Load the splits `train`, `validation` and `test` of a dataset from the Hub or a folder, with the same fields."""
    splits = known_splits(name, load_dataset(name, config)).items()
    return {split: _select_languages(rows, source_lang, target_lang, f"{name}, {split}") for split, rows in splits}


def _select_languages(rows: Dataset, source_lang: str | None, target_lang: str | None, where: str) -> Dataset:
    """Return the columns `source` and `target`: text fields of the row or of its field `translation`."""
    rows = rows.flatten()
    texts = [name for name, kind in rows.features.items() if getattr(kind, "dtype", "") in ("string", "large_string")]
    fields = {name.removeprefix("translation."): name for name in texts}
    columns = {}
    for side, language in (("source", source_lang), ("target", target_lang)):
        if language not in fields:
            known = ", ".join(fields) or "none"
            raise InputError(f"`{side}_lang` is {language}, which is no text field of {where}: choose one of {known}.")
        columns[fields.pop(language)] = side
    rows = rows.select_columns(list(columns)).rename_columns(columns)
    return rows if rows.features == PAIRS else rows.cast(PAIRS)


def has_references(rows: Dataset) -> bool:
    """Return whether any row has a target, which may be empty, but not `None`."""
    return rows.with_format("arrow")["target"][:].null_count < len(rows)


def drop_empty(splits: Splits) -> Splits:
    """Return the splits without the pairs that have a blank side, with a warning."""
    kept = {}
    for split, rows in splits.items():
        sides = [rows["source"][:]] + ([rows["target"][:]] if has_references(rows) else [])
        pairs = enumerate(zip(*sides, strict=True))
        complete = [i for i, pair in pairs if all(text and text.strip() for text in pair)]
        if not complete:
            raise InputError(f"The {split} set has no pair with text on both sides: choose another.")
        if len(complete) < len(rows):
            logger.warning(f"Dropped {len(rows) - len(complete)} of {len(rows)} {split} pairs with an empty side.")
        kept[split] = rows.select(complete)
    return kept


def texts_of_pairs(rows: Dataset) -> list[str]:
    """Return all sources, then all targets: the training text of a shared tokenizer."""
    return [*rows["source"][:], *rows["target"][:]]
