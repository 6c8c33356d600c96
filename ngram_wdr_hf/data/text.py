"""Text from files, folders and dataset names, as rows with one column, `text`."""

from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import TypeVar

from datasets import Dataset, IterableDataset, load_dataset, load_dataset_builder
from datasets.exceptions import DatasetGenerationError

from .errors import InputError

SPLITS = ("train", "validation", "test")
# One row a line. Some editors begin a file with a byte order mark, which is no part of the text.
LINES = {"keep_linebreaks": True, "encoding": "utf-8-sig"}
# Of a streamed text without a validation text, so many rows are held out.
HELD_OUT_ROWS = 1000
Item = TypeVar("Item")


def load_text_files(files: dict[str, Sequence[str]], streaming: bool = False) -> dict[str, Dataset | IterableDataset]:
    """One row a line, its line break included, from the files of each split."""
    for paths in files.values():
        check_files(paths)
    patterns = {split: literal(paths) for split, paths in files.items()}
    try:
        return dict(load_dataset("text", data_files=patterns, streaming=streaming, **LINES))
    except DatasetGenerationError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        names = ", ".join(str(path) for paths in files.values() for path in paths)
        raise InputError(f"One of the files {names} is not UTF-8 text: convert it to UTF-8.") from error


def check_files(paths: Sequence[str]) -> None:
    for path in map(Path, paths):
        if not path.is_file():
            raise InputError(f"There is no file {path}: check the path.")
        if path.stat().st_size == 0:
            raise InputError(f"The file {path} is empty: give a file with text in it.")


def literal(paths: Sequence[str]) -> list[str]:
    """Paths where `datasets` takes patterns: a path is none, whatever characters it has."""
    return [escape(str(path)) for path in paths]


def load_text_dataset(
    name: str, config: str | None = None, column: str = "text", streaming: bool = False
) -> dict[str, Dataset | IterableDataset]:
    """The splits of a dataset's name on the Hub or of a folder, reduced to their text."""
    try:
        options = LINES if load_dataset_builder(name, config).name == "text" else {}
        splits = load_dataset(name, config, streaming=streaming, **options)
        # What is streamed does not say what it holds before it is read.
        first_rows = {split: next(iter(splits[split]), None) for split in SPLITS if split in splits}
    except Exception as error:  # the classes are many: not found, no connection, no such configuration, bad files
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else error
        reason = " ".join(str(cause).split())
        raise InputError(f"The dataset {name} cannot be loaded ({reason}): check its name and its files.") from error
    if not first_rows:
        raise InputError(
            f"The dataset {name} has none of the splits {', '.join(SPLITS)}, but {', '.join(splits)}: rename its "
            "splits."
        )
    texts = {}
    for split, row in first_rows.items():
        if row is None:
            raise InputError(f"The dataset {name} has no rows in its {split} split: remove the split.")
        columns = [key for key, value in row.items() if isinstance(value, str | None)]
        if column not in columns:
            raise InputError(
                f"The dataset {name} has no column `{column}` of text in its {split} split, but "
                f"{', '.join(columns) or 'none'}: set `--text_column`."
            )
        rows = splits[split].select_columns(column)
        texts[split] = rows if column == "text" else rows.rename_column(column, "text")
    return texts


def hold_out(splits: dict[str, Dataset | IterableDataset], percentage: float) -> dict[str, Dataset | IterableDataset]:
    """Without a validation split, the last rows of the training text become one; of a streamed text, the first."""
    if "validation" in splits or "train" not in splits:
        return splits
    if not 0 < percentage < 100:
        raise InputError(f"`--validation_percentage` must lie between 0 and 100, got {percentage}.")
    train = splits["train"]
    others = {split: rows for split, rows in splits.items() if split != "train"}
    if isinstance(train, IterableDataset):
        # Nobody knows how long it is.
        parts = {"train": train.skip(HELD_OUT_ROWS), "validation": train.take(HELD_OUT_ROWS)}
        if next(iter(reading(parts["train"])), None) is None:
            raise InputError(
                f"A streamed text of up to {HELD_OUT_ROWS:,} rows is too short to split: give a validation text."
            )
        return {**parts, **others}
    held_out = max(1, round(len(train) * percentage / 100))
    if held_out >= len(train):
        raise InputError(f"A training text of {len(train)} lines is too short to split: give a `--validation_file`.")
    parts = {
        "train": train.select(range(len(train) - held_out)),
        "validation": train.select(range(len(train) - held_out, len(train))),
    }
    return {**parts, **others}


def reading(items: Iterable[Item]) -> Iterator[Item]:
    """What is streamed shows only as it is read whether it is text."""
    try:
        yield from items
    except UnicodeDecodeError as error:
        raise InputError(f"The streamed text is not UTF-8 ({error}): convert it to UTF-8.") from error
