"""Text from files, folders and datasets, as rows with one column, `text`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import TypeVar

from datasets import Dataset, IterableDataset, load_dataset, load_dataset_builder
from datasets.arrow_writer import SchemaInferenceError
from datasets.exceptions import DatasetGenerationError

from .errors import DAMAGED, InputError

SPLITS = ("train", "validation", "test")
# One row per line, without the byte order mark that some editors write.
LINES = {"keep_linebreaks": True, "encoding": "utf-8-sig"}
# Rows of a streamed training text that become the validation text if there is none.
HELD_OUT_ROWS = 1000
Item = TypeVar("Item")


def load_text_files(files: dict[str, Sequence[str]], streaming: bool = False) -> dict[str, Dataset | IterableDataset]:
    """
    Load the UTF-8 files of each split, joined, one row per line in the column `text`, line breaks included. With
    `streaming`, the rows are read when they are used. Raise an `InputError` for a missing, empty or undecodable file.
    """
    for paths in files.values():
        check_files(paths)
    patterns = {split: escape_patterns(paths) for split, paths in files.items()}
    try:
        return dict(load_dataset("text", data_files=patterns, streaming=streaming, **LINES))
    except DatasetGenerationError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno is not None:
            # A full disk, for example: the text is also written to a cache.
            raise cause from None
        names = ", ".join(str(path) for paths in files.values() for path in paths)
        raise InputError(
            f"One of the files {names} is not UTF-8 text, or damaged ({cause}): convert it to UTF-8, or replace it."
        ) from error


def check_files(paths: Sequence[str]) -> None:
    """Raise an `InputError` if a file does not exist, cannot be read or is empty."""
    for path in map(Path, paths):
        if path.is_dir():
            raise InputError(f"{path} is a folder: choose a file.")
        if not path.is_file():
            raise InputError(f"The file {path} does not exist: check the path.")
        if not os.access(path, os.R_OK):
            raise InputError(f"The file {path} must not be read by this user: change its permissions.")
        if path.stat().st_size == 0:
            raise InputError(f"The file {path} is empty: choose a file with text.")


def escape_patterns(paths: Sequence[str]) -> list[str]:
    """Return the paths escaped for `datasets`, which would read characters such as `*` as patterns."""
    return [escape(str(path)) for path in paths]


def load_text_dataset(
    name: str, config: str | None = None, column: str = "text", streaming: bool = False
) -> dict[str, Dataset | IterableDataset]:
    """
    Load one text column of a dataset from the Hub or a folder, as rows of `text`: those of the splits `train`,
    `validation` and `test` that it has. `config` is the dataset's configuration, `None` for the default. With
    `streaming`, the rows are read when they are used.
    """
    try:
        options = LINES if load_dataset_builder(name, config).name == "text" else {}
        splits = load_dataset(name, config, streaming=streaming, **options)
        # A streamed dataset shows its columns only when it is read.
        first_rows = {split: next(iter(splits[split]), None) for split in SPLITS if split in splits}
    except Exception as error:  # many classes: not found, no connection, no such configuration, bad files
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) else error
        if isinstance(cause, SchemaInferenceError):
            raise InputError(f"The dataset {name} has no rows in one of its splits: remove empty files.") from error
        reason = " ".join(str(cause).split())
        raise InputError(f"The dataset {name} cannot be loaded ({reason}): check its name and files.") from error
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
                f"`--text_column` `{column}` is not in the {split} split of the dataset {name}: choose a text column "
                f"of {', '.join(columns) or 'none'}."
            )
        rows = splits[split].select_columns(column)
        texts[split] = rows if column == "text" else rows.rename_column(column, "text")
    return texts


def hold_out(splits: dict[str, Dataset | IterableDataset], percentage: float) -> dict[str, Dataset | IterableDataset]:
    """
    Return the splits with a `validation` split. If there is none yet, it gets the last `percentage` percent of the
    training rows; of a streamed text, whose length is unknown, the first 1,000 rows. Without training rows, nothing
    changes.
    """
    if "validation" in splits or "train" not in splits:
        return splits
    if not 0 < percentage < 100:
        raise InputError(f"`--validation_percentage` must be more than 0 and less than 100, got {percentage}.")
    train = splits["train"]
    other_splits = {split: rows for split, rows in splits.items() if split != "train"}
    if isinstance(train, IterableDataset):
        parts = {"train": train.skip(HELD_OUT_ROWS), "validation": train.take(HELD_OUT_ROWS)}
        if next(iter(iterate_text(parts["train"])), None) is None:
            raise InputError(
                f"`--streaming` text of up to {HELD_OUT_ROWS:,} rows is too short to split: set `--validation_file`."
            )
        return {**parts, **other_splits}
    held_out = max(1, round(len(train) * percentage / 100))
    if held_out >= len(train):
        raise InputError(f"A training text of {len(train)} lines is too short to split: set `--validation_file`.")
    parts = {
        "train": train.select(range(len(train) - held_out)),
        "validation": train.select(range(len(train) - held_out, len(train))),
    }
    return {**parts, **other_splits}


def iterate_text(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items of a text as they are. Raise an `InputError` where a streamed file turns out to be damaged."""
    try:
        yield from items
    except DAMAGED as error:
        raise InputError(
            f"The streamed text is not UTF-8, or damaged ({error}): convert it to UTF-8, or replace the file."
        ) from error
