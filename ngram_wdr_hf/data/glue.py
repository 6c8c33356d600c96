"""The tasks SST-2, CoLA and RTE of GLUE, from their own files or from a dataset."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import get_dataset_config_names, load_dataset

from .errors import InputError
from .text import check_files


@dataclass(frozen=True)
class GlueTask:
    r"""
    What a task asks, and how its files say it.

    Args:
        name (`str`): Its name in the library `datasets`.
        title (`str`): Its name in the paper, and of its folder.
        sentences (`tuple[str, ...]`): The columns with text.
        labels (`tuple[str, ...]`): What the labels 0, 1, ... mean.
        metric (`str`): What its results are measured by.
        columns (`tuple[str, ...]`, *optional*): Those of its files if they have no header.
    """

    name: str
    title: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...]
    metric: str
    columns: tuple[str, ...] | None = None

    @property
    def metric_title(self) -> str:
        """The metric's name, as people write it."""
        return self.metric.replace("_", " ").replace("matthews", "Matthews")

    def label_id(self, label: Any) -> int | None:
        """The number of a label, given by its number or in words; `None` if there is no such label."""
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
    """A task by its name, whatever its case and its hyphens."""
    task = GLUE_TASKS.get(name.lower().replace("-", "").replace("_", ""))
    if task is None:
        raise InputError(f"There is no task {name!r}: `--task` takes {', '.join(GLUE_TASKS)}.")
    return task


@dataclass
class GlueExamples:
    """
    Args:
        texts (`list[list[str]]`): For each column of text, that of all examples: what a tokenizer is called with.
        labels (`list[int]`): What each example should be called.
    """

    texts: list[list[str]]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Any]], task: GlueTask, place: str) -> "GlueExamples":
        """
        Args:
            rows (`Iterable[Sequence[Any]]`): The number of a row, the texts of its sentences, and its label.
            task (`GlueTask`): What the labels mean.
            place (`str`): Where the rows are, for errors, as in "Line {} of dev.tsv".
        """
        texts, labels = [[] for _ in task.sentences], []
        for number, *sentences, label in rows:
            label_id = task.label_id(label)
            if label_id is None:
                known = ", ".join([*map(str, range(len(task.labels))), *task.labels])
                raise InputError(f"{place.format(number)} has the label {label!r}: {task.title} has {known}.")
            # The files have spaces before the line's end, which byte-level tokenizers make a token of.
            for column, sentence in zip(texts, sentences, strict=True):
                column.append(str(sentence or "").strip())
                if not column[-1]:
                    raise InputError(f"{place.format(number)} has an empty sentence: remove it.")
            labels.append(label_id)
        return cls(texts, labels)


def read_glue_file(path: str | Path, task: GlueTask) -> GlueExamples:
    """The examples of one of GLUE's own files, separated by tabs and without quoting."""
    check_files([path])
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            lines = [(reader.line_num, line) for line in reader if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The file {path} is not a table of UTF-8 text ({error}): convert it.") from error
    columns = task.columns or (tuple(lines.pop(0)[1]) if lines else ())
    wanted = [*task.sentences, "label"]
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise InputError(f"The file {path} does not begin with the names of {task.title}'s columns: no {missing[0]}.")
    if not lines:
        raise InputError(f"The file {path} has no examples: give a file with some.")
    for number, line in lines:
        if len(line) != len(columns):
            raise InputError(
                f"Line {number} of {path} has {len(line)} columns instead of {len(columns)}: {task.title} has "
                f"{', '.join(columns)}, separated by tabs."
            )
    places = [columns.index(name) for name in wanted]
    rows = ((number, *(line[place] for place in places)) for number, line in lines)
    return GlueExamples.from_rows(rows, task, f"Line {{}} of {path}")


def load_glue_dataset(name: str, task: GlueTask, is_only_task: bool = True) -> dict[str, GlueExamples]:
    r"""
    The training and validation examples of a dataset.

    Args:
        name (`str`): Its name on the Hub, or a folder.
        task (`GlueTask`): The task, which its configuration is called after.
        is_only_task (`bool`, *optional*, defaults to `True`): Whether a dataset without such a configuration may be
            this task and no other.
    """
    try:
        has_task = not is_only_task or task.name in get_dataset_config_names(name)
        splits = load_dataset(name, task.name if has_task else None)
    except Exception as error:  # the classes are many: not found, no connection, several configurations, bad files
        reason = " ".join(str(error.__cause__ or error).split())
        raise InputError(
            f"The dataset {name} cannot be loaded for the task {task.name} ({reason}): check its name and its files."
        ) from error
    wanted = [*task.sentences, "label"]
    examples = {}
    for split in ("train", "validation"):
        missing = [column for column in wanted if split in splits and column not in splits[split].column_names]
        if split not in splits or missing:
            what = f"no column {missing[0]} in its {split} split" if missing else f"no {split} split"
            raise InputError(f"The dataset {name} has {what}: it is not {task.title}.")
        columns = [splits[split][column] for column in wanted]
        examples[split] = GlueExamples.from_rows(
            zip(range(len(splits[split])), *columns, strict=True), task, f"Row {{}} of {name}'s {split} split"
        )
        if not len(examples[split]):
            raise InputError(f"The dataset {name} has no examples in its {split} split.")
    return examples
