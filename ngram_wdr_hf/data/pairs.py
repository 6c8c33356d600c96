"""Sentence pairs from parallel text files, JSON lines and datasets, as rows with `source` and `target`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, Features, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from .errors import DAMAGED, InputError
from .text import SPLITS, check_files, escape_patterns

PAIRS = Features({"source": Value("string"), "target": Value("string")})


@dataclass(frozen=True)
class Languages:
    """
    The names of the fields of source and target in a row, such as `en` and `de`, from `--source_lang` and
    `--target_lang`. `None` means that the option is not set, an error where fields have to be chosen.
    """

    source: str | None
    target: str | None


def load_pair_files(files: dict[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, Dataset]:
    """
    Load parallel text files, given as source files and target files of each split. Line i of the sources belongs to
    line i of the targets; several files are joined. Without target files, the targets are `None`. The pairs are cached
    until a file changes.
    """
    splits = {}
    for split, (sources, targets) in files.items():
        if not sources:
            raise InputError(f"`--{split}_target` needs a `--{split}_source`: set both.")
        check_files([*sources, *targets])
        # Part of the cache key, so that a changed file is read again.
        stamps = tuple((Path(path).stat().st_mtime_ns, Path(path).stat().st_size) for path in (*sources, *targets))
        # Tuples, because `datasets` splits lists into shards.
        arguments = {"split": split, "sources": tuple(sources), "targets": tuple(targets), "stamps": stamps}
        try:
            splits[split] = Dataset.from_generator(_read_pairs, features=PAIRS, gen_kwargs=arguments)
        except DatasetGenerationError as error:
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from None
            raise
    return splits


def _read_pairs(
    split: str, sources: tuple[str, ...], targets: tuple[str, ...], stamps: tuple
) -> Iterator[dict[str, str | None]]:
    source, target = read_lines(sources), read_lines(targets) if targets else None
    if target is not None and len(source) != len(target):
        raise InputError(
            f"`--{split}_source` and `--{split}_target` must have the same number of lines, but {', '.join(sources)} "
            f"has {len(source)} and {', '.join(targets)} has {len(target)}: align them."
        )
    for i, line in enumerate(source):
        yield {"source": line, "target": None if target is None else target[i]}


def load_json_pairs(files: dict[str, Sequence[str]], languages: Languages) -> dict[str, Dataset]:
    """
    Load the JSON lines of each split, one pair per line: `{"en": ..., "de": ...}` or
    `{"translation": {"en": ..., "de": ...}}`. Of the fields, `languages` names source and target.
    """
    for paths in files.values():
        check_files(paths)
    patterns = {split: escape_patterns(paths) for split, paths in files.items()}
    try:
        # Split by split, because their other fields may differ.
        rows = {split: load_dataset("json", data_files=paths, split="train") for split, paths in patterns.items()}
        pairs = {split: _select_languages(rows[split], languages, f"the {split} file") for split in rows}
        for split in pairs.values():
            # Read everything now: invalid UTF-8 is found only then.
            _ = split["source"][:], split["target"][:]
        return pairs
    except InputError:
        raise
    # Invalid UTF-8 and missing rows raise plain ValueErrors.
    except (DatasetGenerationError, ValueError, *DAMAGED) as error:
        names = ", ".join(path for paths in files.values() for path in paths)
        reason = " ".join(str(error.__cause__ or error).split())
        raise InputError(f"One of the files {names} is not JSON lines ({reason}): write one object per line.") from (
            error
        )


def load_pair_dataset(name: str, config: str | None, languages: Languages) -> dict[str, Dataset]:
    """
    Load a translation dataset from the Hub or a folder: those of the splits `train`, `validation` and `test` that it
    has. `config` is the dataset's configuration, `None` for the default. Of the fields, `languages` names source and
    target.
    """
    try:
        splits = load_dataset(name, config)
    except Exception as error:  # many classes: not found, no connection, no such configuration, bad files
        reason = " ".join(str(error.__cause__ or error).split())
        raise InputError(f"The dataset {name} cannot be loaded ({reason}): check its name and files.") from error
    known = {split: splits[split] for split in SPLITS if split in splits}
    if not known:
        raise InputError(
            f"The dataset {name} has none of the splits {', '.join(SPLITS)}, but {', '.join(splits)}: rename its "
            "splits."
        )
    return {
        split: _select_languages(rows, languages, f"the {split} split of the dataset {name}")
        for split, rows in known.items()
    }


def reverse(splits: dict[str, Dataset]) -> dict[str, Dataset]:
    """Return new splits with source and target swapped. Raise an `InputError` if a split has no targets."""
    for split, rows in splits.items():
        if not has_references(rows):
            raise InputError(
                f"`--reverse` needs targets, but the {split} set has none: leave it out, or add `--{split}_target`."
            )
    swapped = {"source": "target", "target": "source"}
    return {split: rows.rename_columns(swapped).select_columns(list(PAIRS)) for split, rows in splits.items()}


def has_references(rows: Dataset) -> bool:
    """Return whether any row has a target, which may be empty, but not `None`."""
    return rows.with_format("arrow")["target"][:].null_count < len(rows)


def drop_empty(splits: dict[str, Dataset], notify: Callable[[str], None]) -> dict[str, Dataset]:
    """
    Return the splits without the pairs that have an empty or blank side. Pass a message with their number to `notify`,
    one per split that loses pairs. Without targets, only the sources count. Raise an `InputError` if nothing is left
    of a split.
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
            f"`--validation_percentage` must leave pairs for training and for validation, got {percentage} for "
            f"{len(train)} training pairs: choose another value, or give a validation set."
        )
    parts = train.train_test_split(held_out, seed=0)
    return {**splits, "train": parts["train"], "validation": parts["test"]}


def texts_of_pairs(rows: Dataset) -> list[str]:
    """Return all sources, then all targets: the training text of a shared tokenizer."""
    return [*rows["source"][:], *rows["target"][:]]


def read_lines(paths: Sequence[str]) -> list[str]:
    """
    Return the lines of all UTF-8 files one after the other, without their line ends. Empty lines are kept. Raise an
    `InputError` if there are no lines at all.
    """
    lines = []
    for path in paths:
        try:
            # Only line feeds end a line: other line breaks would shift the alignment.
            with open(path, encoding="utf-8-sig", newline="\n") as file:
                lines += [line.rstrip("\r\n") for line in file]
        except UnicodeDecodeError as error:
            raise InputError(f"The file {path} is not UTF-8 text: convert it to UTF-8.") from error
    if not lines:
        raise InputError(f"{', '.join(paths)} has no lines: choose a file with text.")
    return lines


def _select_languages(rows: Dataset, languages: Languages, where: str) -> Dataset:
    """
    Return the columns `source` and `target`: the fields that `languages` names, at the top level of a row or in its
    field `translation`. Raise an `InputError` if a field is missing; `where` describes the rows in it.
    """
    rows = rows.flatten()
    fields = {
        name.removeprefix("translation."): name
        for name, feature in rows.features.items()
        if getattr(feature, "dtype", None) in ("string", "large_string")
    }
    columns = {}
    for side, name in (("source", languages.source), ("target", languages.target)):
        if name not in fields:
            problem = f"`{name}` is not in" if name else "is not set for"
            raise InputError(
                f"`--{side}_lang` {problem} {where}: choose one of its languages, {', '.join(fields) or 'none'}."
            )
        columns[side] = fields[name]
    if columns["source"] == columns["target"]:
        raise InputError(f"`--source_lang` and `--target_lang` are both `{languages.source}`: choose two languages.")
    rows = rows.select_columns(list(columns.values()))
    rows = rows.rename_columns({column: side for side, column in columns.items()})
    return rows if rows.features == PAIRS else rows.cast(PAIRS)
