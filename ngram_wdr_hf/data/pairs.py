"""Sentence pairs from parallel text files, JSON lines and datasets, as rows with `source` and `target`."""

from collections.abc import Callable, Iterator, Sequence
from glob import escape
from pathlib import Path

from datasets import Dataset, Features, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from .errors import InputError
from .text import known_splits

PAIRS = Features({"source": Value("string"), "target": Value("string")})


def load_pair_files(files: dict[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, Dataset]:
    """
    Load parallel text files, given as source files and target files of each split. Line i of the sources belongs to
    line i of the targets; several files are joined. Without target files, the targets are `None`. The pairs are cached
    until a file changes.
    """
    splits = {}
    for split, (sources, targets) in files.items():
        stats = [Path(path).stat() for path in (*sources, *targets)]
        # Part of the cache key. Tuples, because `datasets` splits lists into shards.
        stamps = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
        arguments = {"sources": tuple(sources), "targets": tuple(targets), "stamps": stamps}
        try:
            splits[split] = Dataset.from_generator(_read_pairs, features=PAIRS, gen_kwargs=arguments)
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None
    return splits


def _read_pairs(
    sources: tuple[str, ...], targets: tuple[str, ...], stamps: tuple[tuple[int, int], ...]
) -> Iterator[dict[str, str | None]]:
    source = read_lines(sources)
    target = read_lines(targets) if targets else [None] * len(source)
    if len(source) != len(target):
        raise InputError(
            f"Sources and targets must have the same number of lines, but {', '.join(sources)} has {len(source)} and "
            f"{', '.join(targets)} has {len(target)}: align them."
        )
    yield from ({"source": line, "target": other} for line, other in zip(source, target, strict=True))


def read_lines(paths: Sequence[str]) -> list[str]:
    """Return the lines of all UTF-8 files one after the other, without their line ends. Empty lines are kept."""
    lines = []
    for path in paths:
        # Only line feeds end a line: other line breaks would shift the alignment.
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            lines += [line.rstrip("\r\n") for line in file]
    return lines


def load_json_pairs(
    files: dict[str, Sequence[str]], source_lang: str | None, target_lang: str | None
) -> dict[str, Dataset]:
    """
    Load the JSON lines of each split, one pair per line: `{"en": ..., "de": ...}` or
    `{"translation": {"en": ..., "de": ...}}`. The languages are the names of the fields.
    """
    splits = {}
    # Split by split, because their other fields may differ.
    for split, paths in files.items():
        rows = load_dataset("json", data_files=[escape(str(path)) for path in paths], split="train")
        splits[split] = _select_languages(rows, source_lang, target_lang, f"the {split} file")
    return splits


def load_pair_dataset(
    name: str, config: str | None, source_lang: str | None, target_lang: str | None
) -> dict[str, Dataset]:
    """
    Load a translation dataset from the Hub or a folder: those of the splits `train`, `validation` and `test` that it
    has. `config` is the dataset's configuration; the languages are the names of the fields.
    """
    return {
        split: _select_languages(rows, source_lang, target_lang, f"the {split} split of the dataset {name}")
        for split, rows in known_splits(name, load_dataset(name, config)).items()
    }


def _select_languages(rows: Dataset, source_lang: str | None, target_lang: str | None, where: str) -> Dataset:
    """Return the columns `source` and `target`: text fields of the row or of its field `translation`."""
    rows = rows.flatten()
    fields = {
        name.removeprefix("translation."): name
        for name, feature in rows.features.items()
        if getattr(feature, "dtype", None) in ("string", "large_string")
    }
    columns = {}
    for side, language in (("source", source_lang), ("target", target_lang)):
        if language not in fields:
            raise InputError(
                f"`{side}_lang` must be a text field of {where}, {' or '.join(fields) or 'which has none'}, got "
                f"{language}."
            )
        columns[fields.pop(language)] = side
    rows = rows.select_columns(list(columns)).rename_columns(columns)
    return rows if rows.features == PAIRS else rows.cast(PAIRS)


def reverse(splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Return new splits with source and target swapped."""
    swapped = {"source": "target", "target": "source"}
    return {split: rows.rename_columns(swapped).select_columns(list(PAIRS)) for split, rows in splits.items()}


def has_references(rows: Dataset) -> bool:
    """Return whether any row has a target, which may be empty, but not `None`."""
    return rows.with_format("arrow")["target"][:].null_count < len(rows)


def drop_empty(splits: dict[str, Dataset], notify: Callable[[str], None]) -> dict[str, Dataset]:
    """
    Return the splits without the pairs that have an empty or blank side. Pass a message with their number to `notify`,
    one per split that loses pairs. Without targets, only the sources count.
    """
    kept = {}
    for split, rows in splits.items():
        sides = [rows["source"][:], *([rows["target"][:]] if has_references(rows) else [])]
        complete = [
            i for i, texts in enumerate(zip(*sides, strict=True)) if all(text and text.strip() for text in texts)
        ]
        if not complete:
            raise InputError(f"The {split} set has no pair with text on both sides: choose another.")
        if len(complete) < len(rows):
            notify(f"Dropped {len(rows) - len(complete)} of {len(rows)} {split} pairs with an empty side.")
        kept[split] = rows if len(complete) == len(rows) else rows.select(complete)
    return kept


def hold_out_pairs(splits: dict[str, Dataset], percentage: float) -> dict[str, Dataset]:
    """
    Return the splits with a `validation` split. If there is none yet, it gets `percentage` percent of the training
    pairs, chosen at random but the same every time. Without training pairs, nothing changes.
    """
    if "validation" in splits or "train" not in splits:
        return splits
    train = splits["train"]
    held_out = round(len(train) * percentage / 100) if 0 < percentage < 100 else 0
    if not 0 < held_out < len(train):
        raise InputError(
            f"{percentage} % of {len(train)} training pairs cannot be held out: choose another percentage, or give a "
            "validation set."
        )
    parts = train.train_test_split(held_out, seed=0)
    return {**splits, "train": parts["train"], "validation": parts["test"]}


def texts_of_pairs(rows: Dataset) -> list[str]:
    """Return all sources, then all targets: the training text of a shared tokenizer."""
    return [*rows["source"][:], *rows["target"][:]]
