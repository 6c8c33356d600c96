"""The GLUE tasks SST-2, CoLA and RTE, read from GLUE's files or from a dataset."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import get_dataset_config_names, load_dataset

from .errors import InputError


@dataclass(frozen=True)
class GlueTask:
    r"""
    A GLUE task and the format of its files.

    Args:
        name (`str`): The name in the library `datasets` and of `--task`, such as `sst2`.
        title (`str`): The name for display and of the task's folder, such as `SST-2`.
        sentences (`tuple[str, ...]`): The names of the text columns, one or two.
        labels (`tuple[str, ...]`): The names of the labels, in the order of their ids 0, 1, ...
        metric (`str`): The name of the metric, `accuracy` or `matthews_correlation`.
        columns (`tuple[str, ...]`, *optional*): All columns of its files, in order, if the files have no header line.
            `None` means that the first line is the header.
    """

    name: str
    title: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...]
    metric: str
    columns: tuple[str, ...] | None = None

    @property
    def metric_title(self) -> str:
        """The metric's name for display: `accuracy` or `Matthews correlation`."""
        return self.metric.replace("_", " ").replace("matthews", "Matthews")

    def label_id(self, label: Any) -> int | None:
        """Return the id of a label, given as its id (also a string) or its name; `None` if there is no such label."""
        names = {**{str(i): i for i in range(len(self.labels))}, **{name: i for i, name in enumerate(self.labels)}}
        return names.get(str(label))


GLUE_TASKS = {
    task.name: task
    for task in (
        GlueTask("sst2", "SST-2", ("sentence",), ("negative", "positive"), "accuracy"),
        GlueTask(
            "cola",
            "CoLA",
            ("sentence",),
            ("unacceptable", "acceptable"),
            "matthews_correlation",
            columns=("source", "label", "star", "sentence"),
        ),
        GlueTask("rte", "RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment"), "accuracy"),
    )
}


def glue_task(name: str) -> GlueTask:
    """
    Return the task of a name, ignoring case, hyphens and underscores: `SST-2` is `sst2`. Raise an `InputError` if
    there is no such task.
    """
    task = GLUE_TASKS.get(name.lower().replace("-", "").replace("_", ""))
    if task is None:
        raise InputError(f"`--task` must be one of {', '.join(GLUE_TASKS)}, got {name!r}.")
    return task


@dataclass
class GlueExamples:
    """
    Texts and labels of a GLUE split. The length is the number of examples.

    Args:
        texts (`list[list[str]]`): One list per text column, each with one sentence per example.
        labels (`list[int]`): The label id of each example.
    """

    texts: list[list[str]]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]], task: GlueTask, location: str) -> "GlueExamples":
        """
        Make examples of rows. Sentences are stripped, and label names become ids. Raise an `InputError` for an empty
        sentence or an unknown label.

        Args:
            rows (`Iterable[Sequence[Any]]`): Row number, sentences and label (id or name) of each example.
            task (`GlueTask`): The task.
            location (`str`): How errors name a row, with `{}` for its number, as in "Line {} of dev.tsv".
        """
        texts, labels = [[] for _ in task.sentences], []
        for number, *sentences, label in rows:
            label_id = task.label_id(label)
            if label_id is None:
                known = ", ".join([*map(str, range(len(task.labels))), *task.labels])
                raise InputError(
                    f"{location.format(number)} has the label {label!r}: use one of {task.title}'s labels, {known}."
                )
            # GLUE's files have trailing spaces, which a byte-level tokenizer would turn into a token.
            for column, sentence in zip(texts, sentences, strict=True):
                column.append(str(sentence or "").strip())
                if not column[-1]:
                    raise InputError(f"{location.format(number)} has an empty sentence: remove that example.")
            labels.append(label_id)
        return cls(texts, labels)


def read_glue_file(path: str | Path, task: GlueTask) -> GlueExamples:
    """
    Read the examples of one of GLUE's own files: tab-separated UTF-8 without quoting, with a header line unless
    `task.columns` names the columns. Other columns and empty lines are ignored. Raise an `InputError` for any other
    file.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            lines = [(reader.line_num, line) for line in reader if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The file {path} is not tab-separated UTF-8 text ({error}): convert it.") from error
    columns = task.columns or (tuple(lines.pop(0)[1]) if lines else ())
    wanted = [*task.sentences, "label"]
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise InputError(f"The header of {path} has no column `{missing[0]}`: {task.title} needs {', '.join(wanted)}.")
    if not lines:
        raise InputError(f"The file {path} has no examples: choose another file.")
    for number, line in lines:
        if len(line) != len(columns):
            raise InputError(
                f"Line {number} of {path} has {len(line)} columns instead of {len(columns)}: {task.title} needs "
                f"{', '.join(columns)}, separated by tabs."
            )
    indices = [columns.index(name) for name in wanted]
    rows = ((number, *(line[i] for i in indices)) for number, line in lines)
    return GlueExamples.from_rows(rows, task, f"Line {{}} of {path}")


def load_glue_dataset(name: str, task: GlueTask, is_only_task: bool = True) -> dict[str, GlueExamples]:
    r"""
    Load the examples of a dataset's splits `train` and `validation`. Raise an `InputError` if a split or a column is
    missing.

    Args:
        name (`str`): The name on the Hub, or a folder.
        task (`GlueTask`): The task. Its name selects the dataset's configuration.
        is_only_task (`bool`, *optional*, defaults to `True`): Whether the dataset may have no configuration of that
            name. It is then loaded without one. With `False`, the configuration must exist.
    """
    try:
        has_task = not is_only_task or task.name in get_dataset_config_names(name)
        splits = load_dataset(name, task.name if has_task else None)
    except Exception as error:  # many classes: not found, no connection, several configurations, bad files
        reason = " ".join(str(error.__cause__ or error).split())
        raise InputError(
            f"The dataset {name} cannot be loaded for the task {task.name} ({reason}): check its name and files."
        ) from error
    wanted = [*task.sentences, "label"]
    examples = {}
    for split in ("train", "validation"):
        missing = [column for column in wanted if split in splits and column not in splits[split].column_names]
        if split not in splits or missing:
            what = f"no column {missing[0]} in its {split} split" if missing else f"no {split} split"
            raise InputError(f"The dataset {name} has {what}, which {task.title} needs: choose another.")
        columns = [splits[split][column] for column in wanted]
        examples[split] = GlueExamples.from_rows(
            zip(range(len(splits[split])), *columns, strict=True), task, f"Row {{}} of {name}'s {split} split"
        )
        if not len(examples[split]):
            raise InputError(f"The dataset {name} has no examples in its {split} split: choose another.")
    return examples
