"""Text from files, folders and datasets, as rows with one column, `text`."""

from glob import escape

from datasets import Dataset, IterableDataset, load_dataset, load_dataset_builder

from .errors import InputError

SPLITS = ("train", "validation", "test")
# One row per line, without the byte order mark that some editors write.
LINES = {"keep_linebreaks": True, "encoding": "utf-8-sig"}
# Rows of a streamed training text that become the validation text if there is none.
HELD_OUT_ROWS = 1000


def load_text_files(files: dict[str, list[str]], streaming: bool = False) -> dict[str, Dataset | IterableDataset]:
    """
    Load the UTF-8 files of each split, joined, one row per line, line breaks included. With `streaming`, the rows are
    read when they are used.
    """
    # Without escaping, `datasets` reads characters such as `*` as patterns.
    patterns = {split: [escape(str(path)) for path in paths] for split, paths in files.items()}
    return dict(load_dataset("text", data_files=patterns, streaming=streaming, **LINES))


def load_text_dataset(
    name: str, config: str | None = None, column: str = "text", streaming: bool = False
) -> dict[str, Dataset | IterableDataset]:
    """
    Load one text column of a dataset from the Hub or a folder: those of the splits `train`, `validation` and `test`
    that it has. `config` is the dataset's configuration. With `streaming`, the rows are read when they are used.
    """
    options = LINES if load_dataset_builder(name, config).name == "text" else {}
    splits = known_splits(name, load_dataset(name, config, streaming=streaming, **options))
    for split, rows in splits.items():
        # A streamed dataset shows its columns only when it is read.
        columns = [key for key, value in next(iter(rows), {}).items() if isinstance(value, str | None)]
        if column not in columns:
            raise InputError(
                f"The {split} split of the dataset {name} has no text column `{column}`: choose one of "
                f"{', '.join(columns) or 'none'}."
            )
        rows = rows.select_columns(column)
        splits[split] = rows if column == "text" else rows.rename_column(column, "text")
    return splits


def known_splits(name: str, splits: dict[str, Dataset | IterableDataset]) -> dict[str, Dataset | IterableDataset]:
    """Return the splits of the dataset `name` that we use, in the order of `SPLITS`."""
    known = {split: splits[split] for split in SPLITS if split in splits}
    if not known:
        raise InputError(
            f"The dataset {name} has none of the splits {', '.join(SPLITS)}, but {', '.join(splits)}: rename its "
            "splits."
        )
    return known


def hold_out(splits: dict[str, Dataset | IterableDataset], percentage: float) -> dict[str, Dataset | IterableDataset]:
    """
    Return the splits with a `validation` split. If there is none yet, it gets the last `percentage` percent of the
    training rows; of a streamed text, whose length is unknown, the first 1,000 rows. Without training rows, nothing
    changes.
    """
    if "validation" in splits or "train" not in splits:
        return splits
    train = splits["train"]
    if isinstance(train, IterableDataset):
        parts = {"train": train.skip(HELD_OUT_ROWS), "validation": train.take(HELD_OUT_ROWS)}
        if next(iter(parts["train"]), None) is None:
            raise InputError(
                f"A streamed text of up to {HELD_OUT_ROWS:,} rows is too short to split: give a validation text."
            )
        return {**splits, **parts}
    held_out = max(1, round(len(train) * percentage / 100)) if 0 < percentage < 100 else 0
    if not 0 < held_out < len(train):
        raise InputError(
            f"{percentage} % of a training text of {len(train)} rows cannot be held out: choose another percentage, "
            "or give a validation text."
        )
    first = len(train) - held_out
    parts = {"train": train.select(range(first)), "validation": train.select(range(first, len(train)))}
    return {**splits, **parts}
