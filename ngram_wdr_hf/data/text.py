"""Text from files, folders and dataset names, as rows with one column, `text`."""

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, IterableDataset, load_dataset

from .errors import InputError

SPLITS = ("train", "validation", "test")


def load_text_files(files: dict[str, Sequence[str]], streaming: bool = False) -> dict[str, Dataset | IterableDataset]:
    """One row a line, its line break included, from the files of each split."""
    for paths in files.values():
        for path in map(Path, paths):
            if not path.is_file():
                raise InputError(f"There is no file {path}: check the path.")
            if path.stat().st_size == 0:
                raise InputError(f"The file {path} is empty: give a file with text in it.")
    try:
        return dict(
            load_dataset(
                "text",
                data_files={split: list(map(str, paths)) for split, paths in files.items()},
                keep_linebreaks=True,
                streaming=streaming,
            )
        )
    except Exception as error:
        if not isinstance(_root(error), UnicodeDecodeError):
            raise
        names = ", ".join(path for paths in files.values() for path in paths)
        raise InputError(f"One of the files {names} is not UTF-8 text: convert it to UTF-8.") from error


def load_text_dataset(
    name: str, config: str | None = None, column: str = "text", streaming: bool = False
) -> dict[str, Dataset | IterableDataset]:
    """The splits of a dataset's name on the Hub or of a folder, reduced to their text."""
    try:
        splits = load_dataset(name, config, streaming=streaming)
    except Exception as error:  # the classes are many: not found, no connection, no such configuration, bad files
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"The dataset {name} cannot be loaded ({reason}): check its name or folder.") from error
    texts = {}
    for split in SPLITS:
        if split in splits:
            columns = splits[split].column_names or []
            if column not in columns:
                raise InputError(
                    f"The dataset {name} has no column `{column}` in its {split} split: set `--text_column` to one of "
                    f"{', '.join(columns)}."
                )
            texts[split] = splits[split].select_columns(column).rename_columns({column: "text"})
    if not texts:
        raise InputError(f"The dataset {name} has none of the splits {', '.join(SPLITS)}: rename its splits.")
    return texts


def hold_out(splits: dict[str, Dataset | IterableDataset], percentage: float) -> dict[str, Dataset | IterableDataset]:
    """Without a validation split, the last rows of the training text become one."""
    if "validation" in splits or "train" not in splits:
        return splits
    if not 0 < percentage < 100:
        raise InputError(f"`--validation_percentage` must lie between 0 and 100, got {percentage}.")
    train = splits["train"]
    if isinstance(train, IterableDataset):
        raise InputError("Streamed text cannot be split: give a validation split or `--validation_file`.")
    held_out = max(1, round(len(train) * percentage / 100))
    if held_out >= len(train):
        raise InputError(f"A training text of {len(train)} lines is too short to split: give a `--validation_file`.")
    parts = {
        "train": train.select(range(len(train) - held_out)),
        "validation": train.select(range(len(train) - held_out, len(train))),
    }
    return {**parts, **{split: rows for split, rows in splits.items() if split not in parts}}


def _root(error: BaseException) -> BaseException:
    """The exception that an exception began with."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return error
