"""Sentence pairs from parallel text files, JSON lines and dataset names, as rows with `source` and `target`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetGenerationError

from .errors import InputError
from .text import SPLITS, check_files, literal, load_text_files


@dataclass(frozen=True)
class Languages:
    """The fields of a row that hold the two languages, as `--source_lang` and `--target_lang` name them."""

    source: str | None
    target: str | None


def load_pair_files(files: dict[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, Dataset]:
    """
    Line by line from the source files and the target files of each split. Without target files, a split is there to
    be translated, and its targets are `None`.
    """
    splits = {}
    for split, (sources, targets) in files.items():
        source, target = (_lines(paths) if paths else None for paths in (sources, targets))
        if source is None:
            raise InputError(f"There is a `--{split}_target` without a `--{split}_source`: give both.")
        if target is None:
            target = [None] * len(source)
        elif len(source) != len(target):
            raise InputError(
                f"The {split} files are not parallel: {', '.join(sources)} has {len(source)} lines and "
                f"{', '.join(targets)} has {len(target)}."
            )
        splits[split] = Dataset.from_dict({"source": source, "target": target})
    return splits


def load_json_pairs(files: dict[str, Sequence[str]], languages: Languages) -> dict[str, Dataset]:
    """One row a line: `{"en": ..., "de": ...}` or `{"translation": {"en": ..., "de": ...}}`."""
    for paths in files.values():
        check_files(paths)
    patterns = {split: literal(paths) for split, paths in files.items()}
    try:
        rows = dict(load_dataset("json", data_files=patterns))
    except DatasetGenerationError as error:
        names = ", ".join(path for paths in files.values() for path in paths)
        reason = " ".join(str(error.__cause__ or error).split())
        raise InputError(f"One of the files {names} is not JSON lines ({reason}): give one JSON object a line.") from (
            error
        )
    return {split: _pick(rows[split], languages, f"The {split} file") for split in rows}


def load_pair_dataset(name: str, config: str | None, languages: Languages) -> dict[str, Dataset]:
    """The splits of a translation set's name on the Hub or of a folder."""
    try:
        splits = load_dataset(name, config)
    except Exception as error:  # the classes are many: not found, no connection, no such configuration, bad files
        reason = " ".join(str(error.__cause__ or error).split())
        raise InputError(f"The dataset {name} cannot be loaded ({reason}): check its name and its files.") from error
    known = {split: splits[split] for split in SPLITS if split in splits}
    if not known:
        raise InputError(
            f"The dataset {name} has none of the splits {', '.join(SPLITS)}, but {', '.join(splits)}: rename its "
            "splits."
        )
    return {split: _pick(rows, languages, f"The {split} split of the dataset {name}") for split, rows in known.items()}


def reverse(splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """The other direction."""
    for split, rows in splits.items():
        if not has_references(rows):
            raise InputError(
                f"The {split} set has no target to translate from: leave out `--reverse`, or give it one."
            )
    return {
        split: Dataset.from_dict({"source": rows["target"][:], "target": rows["source"][:]})
        for split, rows in splits.items()
    }


def has_references(rows: Dataset) -> bool:
    return rows.with_format("arrow")["target"][:].null_count < len(rows)


def drop_empty(splits: dict[str, Dataset], tell: Callable[[str], None]) -> dict[str, Dataset]:
    """Without the pairs of which a side is empty, and how many there were."""
    kept = {}
    for split, rows in splits.items():
        sides = [rows["source"][:], *([rows["target"][:]] if has_references(rows) else [])]
        full = [i for i, texts in enumerate(zip(*sides, strict=True)) if all(text and text.strip() for text in texts)]
        if not full:
            raise InputError(f"The {split} set has no pair with text on both sides: give another.")
        if len(full) < len(rows):
            tell(f"{len(rows) - len(full)} of {len(rows)} {split} pairs were dropped: a side of them is empty.")
        kept[split] = rows if len(full) == len(rows) else rows.select(full)
    return kept


def hold_out_pairs(splits: dict[str, Dataset], percentage: float, seed: int) -> dict[str, Dataset]:
    """Without a validation set, some pairs of the training set become one."""
    if "validation" in splits or "train" not in splits:
        return splits
    train = splits["train"]
    held_out = round(len(train) * percentage / 100)
    if not 0 < held_out < len(train):
        raise InputError(
            f"A training set of {len(train)} pairs cannot give {percentage} percent for validation: give a validation "
            "set."
        )
    parts = train.train_test_split(held_out, seed=seed)
    return {**splits, "train": parts["train"], "validation": parts["test"]}


def texts_of_pairs(rows: Dataset) -> list[str]:
    """Both sides, for a tokenizer that serves both."""
    return [*rows["source"][:], *rows["target"][:]]


def _lines(paths: Sequence[str]) -> list[str]:
    rows = load_text_files({"train": paths})["train"]
    return [line.rstrip("\r\n") for line in rows["text"][:]]


def _pick(rows: Dataset, languages: Languages, where: str) -> Dataset:
    """The two languages' texts out of rows that hold them in fields, or in a field `translation`."""
    if "translation" in rows.column_names:
        rows = rows.flatten().rename_columns({f"translation.{name}": name for name in rows.features["translation"]})
    fields = [name for name, feature in rows.features.items() if getattr(feature, "dtype", None) == "string"]
    texts = {}
    for side, name in (("source", languages.source), ("target", languages.target)):
        if name not in fields:
            what = "has no language" if name else "holds the languages"
            raise InputError(
                f"{where} {what} {f'`{name}`, but ' if name else ''}{', '.join(fields) or 'none'}: set "
                f"`--{side}_lang` to one of them."
            )
        texts[side] = rows[name][:]
    return Dataset.from_dict(texts)
