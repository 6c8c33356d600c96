"""Sentence pairs from parallel text files, JSON lines and dataset names, as rows with `source` and `target`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, Features, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from .errors import InputError
from .text import SPLITS, check_files, literal

PAIRS = Features({"source": Value("string"), "target": Value("string")})


@dataclass(frozen=True)
class Languages:
    """The fields of a row that hold the two languages, as `--source_lang` and `--target_lang` name them."""

    source: str | None
    target: str | None


def load_pair_files(files: dict[str, tuple[Sequence[str], Sequence[str]]]) -> dict[str, Dataset]:
    """
    Line by line from the source files and the target files of each split, read once and cached. Without target files,
    a split is there to be translated, and its targets are `None`.
    """
    splits = {}
    for split, (sources, targets) in files.items():
        if not sources:
            raise InputError(f"There is a `--{split}_target` without a `--{split}_source`: give both.")
        check_files([*sources, *targets])
        # The cache goes by these: a file that was changed is another file.
        stamps = tuple((Path(path).stat().st_mtime_ns, Path(path).stat().st_size) for path in (*sources, *targets))
        # Tuples: of lists, `datasets` would make shards.
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
            f"The {split} files are not parallel: {', '.join(sources)} has {len(source)} lines and "
            f"{', '.join(targets)} has {len(target)}."
        )
    for i, line in enumerate(source):
        yield {"source": line, "target": None if target is None else target[i]}


def load_json_pairs(files: dict[str, Sequence[str]], languages: Languages) -> dict[str, Dataset]:
    """One row a line: `{"en": ..., "de": ...}` or `{"translation": {"en": ..., "de": ...}}`."""
    for paths in files.values():
        check_files(paths)
    patterns = {split: literal(paths) for split, paths in files.items()}
    try:
        # One by one: their other fields may differ.
        rows = {split: load_dataset("json", data_files=paths, split="train") for split, paths in patterns.items()}
        pairs = {split: _pick(rows[split], languages, f"The {split} file") for split in rows}
        for split in pairs.values():
            # Whether it is UTF-8 shows only as it is read.
            _ = split["source"][:], split["target"][:]
        return pairs
    except InputError:
        raise
    except (DatasetGenerationError, ValueError) as error:  # no UTF-8, or no rows, are plain ValueErrors
        names = ", ".join(path for paths in files.values() for path in paths)
        reason = " ".join(str(error.__cause__ or error).split())
        raise InputError(f"One of the files {names} is not JSON lines ({reason}): give one JSON object a line.") from (
            error
        )


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
    swapped = {"source": "target", "target": "source"}
    return {split: rows.rename_columns(swapped).select_columns(list(PAIRS)) for split, rows in splits.items()}


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


def hold_out_pairs(splits: dict[str, Dataset], percentage: float) -> dict[str, Dataset]:
    """Without a validation set, some pairs of the training set become one: the same ones, whoever asks."""
    if "validation" in splits or "train" not in splits:
        return splits
    train = splits["train"]
    held_out = round(len(train) * percentage / 100) if 0 < percentage < 100 else 0
    if not 0 < held_out < len(train):
        raise InputError(
            f"A training set of {len(train)} pairs cannot give {percentage} percent for validation: give a validation "
            "set."
        )
    parts = train.train_test_split(held_out, seed=0)
    return {**splits, "train": parts["train"], "validation": parts["test"]}


def texts_of_pairs(rows: Dataset) -> list[str]:
    """Both sides, for a tokenizer that serves both."""
    return [*rows["source"][:], *rows["target"][:]]


def read_lines(paths: Sequence[str]) -> list[str]:
    """The lines of the files, one after the other."""
    lines = []
    for path in paths:
        try:
            # Only a line feed ends a line: a carriage return inside one would break the alignment.
            with open(path, encoding="utf-8-sig", newline="\n") as file:
                lines += [line.rstrip("\r\n") for line in file]
        except UnicodeDecodeError as error:
            raise InputError(f"The file {path} is not UTF-8 text: convert it to UTF-8.") from error
    if not lines:
        raise InputError(f"There is no line in {', '.join(paths)}: give a file with text in it.")
    return lines


def _pick(rows: Dataset, languages: Languages, where: str) -> Dataset:
    """The two languages' texts out of rows that hold them in fields, or in a field `translation`."""
    rows = rows.flatten()
    fields = {
        name.removeprefix("translation."): name
        for name, feature in rows.features.items()
        if getattr(feature, "dtype", None) in ("string", "large_string")
    }
    columns = {}
    for side, name in (("source", languages.source), ("target", languages.target)):
        if name not in fields:
            what = "has no language" if name else "holds the languages"
            raise InputError(
                f"{where} {what} {f'`{name}`, but ' if name else ''}{', '.join(fields) or 'none'}: set "
                f"`--{side}_lang` to one of them."
            )
        columns[side] = fields[name]
    if columns["source"] == columns["target"]:
        raise InputError(f"`--source_lang` and `--target_lang` are both `{languages.source}`: name two languages.")
    rows = rows.select_columns(list(columns.values()))
    rows = rows.rename_columns({column: side for side, column in columns.items()})
    return rows if rows.features == PAIRS else rows.cast(PAIRS)
