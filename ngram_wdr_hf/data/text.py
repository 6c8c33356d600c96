"""Text from files, folders and datasets, as rows with one column, `text`."""

from glob import escape

from datasets import Dataset, IterableDataset, load_dataset, load_dataset_builder

from .errors import InputError

SPLITS = ("train", "validation", "test")
# One row per line, without the byte order mark that some editors write.
LINES = {"keep_linebreaks": True, "encoding": "utf-8-sig"}
# Rows of a streamed training text that become the validation text if there is none.
HELD_OUT_ROWS = 1000
Splits = dict[str, Dataset | IterableDataset]


def load_text_files(files: dict[str, list[str]], streaming: bool = False) -> Splits:
    """Load the UTF-8 files of each split, joined, as one row per line, with its line break."""
    # Without escaping, `datasets` reads characters such as `*` as patterns.
    patterns = {split: [escape(str(path)) for path in paths] for split, paths in files.items()}
    return dict(load_dataset("text", data_files=patterns, streaming=streaming, **LINES))


def load_text_dataset(name: str, config: str | None = None, column: str = "text", streaming: bool = False) -> Splits:
    """Load one text column of the splits `train`, `validation` and `test` of a dataset from the Hub or a folder."""
    options = LINES if load_dataset_builder(name, config).name == "text" else {}
    splits = known_splits(name, load_dataset(name, config, streaming=streaming, **options))
    for split, rows in splits.items():
        # A streamed dataset shows its columns only when it is read.
        columns = [key for key, value in next(iter(rows), {}).items() if isinstance(value, str | None)]
        if column not in columns:
            known = ", ".join(columns) or "none"
            raise InputError(f"The {split} split of {name} has no text column `{column}`: choose one of {known}.")
        rows = rows.select_columns(column)
        splits[split] = rows if column == "text" else rows.rename_column(column, "text")
    return splits


def known_splits(name: str, splits: Splits) -> Splits:
    """Return the splits of a dataset that are in `SPLITS`."""
    known = {split: splits[split] for split in SPLITS if split in splits}
    if not known:
        raise InputError(f"{name} has the splits {', '.join(splits)}, none of {', '.join(SPLITS)}: rename them.")
    return known


def hold_out(splits: Splits, percentage: float, shuffle: bool = False) -> Splits:
    """
    If there is no `validation` split, hold out the last `percentage` percent of the training rows for it, at least
    one, or with `shuffle` random rows, always the same; of a streamed text, whose length is unknown, the first rows.
    """
    if "validation" in splits or "train" not in splits:
        return splits
    train = splits["train"]
    if isinstance(train, IterableDataset):
        parts = {"train": train.skip(HELD_OUT_ROWS), "validation": train.take(HELD_OUT_ROWS)}
        if next(iter(parts["train"]), None) is None:
            raise InputError(f"A streamed text needs more than {HELD_OUT_ROWS:,} rows: give a validation text.")
        return {**splits, **parts}
    held_out = max(1, round(len(train) * percentage / 100)) if 0 < percentage < 100 else 0
    if not 0 < held_out < len(train):
        raise InputError(f"{percentage} % of {len(train)} training rows cannot be held out: give a validation set.")
    parts = train.train_test_split(held_out, shuffle=shuffle, seed=0)
    return {**splits, "train": parts["train"], "validation": parts["test"]}
