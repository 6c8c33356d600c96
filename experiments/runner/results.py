"""The figures of a table at one scale, and their file."""

import json
from pathlib import Path
from typing import Any

from ngram_wdr_hf.data.errors import InputError

from .tables import Experiment, Run

WITHOUT_HEADS, BEST_LAMBDA = "without heads", "best λ"
# The split of figures after fine-tuning.
GLUE = "GLUE"


class Results:
    """The records of all runs of a table at one scale, one per group, system and seed."""

    def __init__(self, table: str, scale: str, records: list[dict[str, Any]] | None = None):
        self.table, self.scale = table, scale
        self.records = list(records or ())

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Read a results file. Raise an `InputError` if there is none."""
        if not path.exists():
            raise InputError(f"There are no results in {path}: train first, without `--report`.")
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(content["table"], content["scale"], content["runs"])

    def save(self, path: Path) -> None:
        content = {"table": self.table, "scale": self.scale, "runs": self.records}
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(path)

    def of_table(self, experiment: Experiment) -> "Results":
        """Return the results of runs as the table has them now, without those of other options, data or scripts."""

        def is_in_table(record: dict[str, Any]) -> bool:
            group, system = record["group"], record["system"]
            if group not in experiment.groups or system not in experiment.systems:
                return False
            source = experiment.without_heads.get(system, system)
            # Only the names of the data files count, not their folder.
            return is_current(record, experiment.run(group, source, record["seed"], Path(), Path()))

        return Results(self.table, self.scale, [record for record in self.records if is_in_table(record)])

    def add(self, record: dict[str, Any]) -> None:
        """Add a record, in place of an earlier one of the same run."""
        key = ("group", "system", "seed")
        self.records = [other for other in self.records if any(other[name] != record[name] for name in key)]
        self.records.append(record)

    def find(self, group: str, system: str, seed: int) -> dict[str, Any]:
        return next(record for record in self.of(group, system) if record["seed"] == seed)

    def of(self, group: str, system: str | None = None) -> list[dict[str, Any]]:
        """Return the records of a group, of one system or all, by seed."""
        found = [record for record in self.records if record["group"] == group and system in (None, record["system"])]
        return sorted(found, key=lambda record: record["seed"])

    def splits(self, group: str) -> list[str]:
        """Return the splits of a group, the test set first."""
        names = dict.fromkeys(split for record in self.of(group) for split in record["figures"])
        return sorted(names, key=lambda name: (name != "test", name))

    def columns(self, group: str, split: str) -> list[str]:
        """Return the names of the figures of a group, those of the system with the most first."""
        figures = [record["figures"].get(split, {}) for record in self.of(group)]
        return list(dict.fromkeys(name for named in sorted(figures, key=len, reverse=True) for name in named))

    def lambdas(self, group: str, split: str) -> list[float]:
        grids = [record["lambda"].get(split, []) for record in self.of(group)]
        return sorted({value for grid in grids for value, _ in grid})

    def values(self, group: str, system: str, split: str, column: str) -> dict[int, float]:
        """Return a figure by seed. `column` is an ensemble or another figure, or a λ such as `λ=0.6`."""
        values = {}
        for record in self.of(group, system):
            figures = dict(record["figures"].get(split, {}))
            figures |= {f"λ={value:g}": figure for value, figure in record["lambda"].get(split, [])}
            if figures.get(column) is not None:
                values[record["seed"]] = figures[column]
        return values

    def baseline(self, group: str, split: str, column: str) -> dict[int, float]:
        """Return the figure of the plain model to compare `column` with, by seed: the same one, or its only one."""
        own = self.values(group, "plain", split, column)
        names = [name for record in self.of(group, "plain") for name in record["figures"].get(split, {})]
        return own or (self.values(group, "plain", split, names[0]) if names else {})


def is_current(record: dict[str, Any], run: Run) -> bool:
    """Return whether a record is that of a run with the same options, data and scripts."""
    return record["options"] == run.options and record.get("source") == run.source
