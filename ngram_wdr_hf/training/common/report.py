"""Results of a run: tables and `metrics.json`."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel

from ...evaluation.ensemble_fit import EnsembleFit
from ...method.ensemble import Ensemble, describe_ensemble, is_lambda

# Printed tables fit into the narrowest usual terminal.
TEXT_WIDTH, GAP = 80, "  "
# The log entry of a training that diverged: the step that its result comes from.
DIVERGED = "diverged_result_step"
# The heading of the model's own prediction.
WITHOUT_HEADS = "without heads"


@dataclass
class RunResult:
    """
    A finished run.

    Args:
        name (`str`): Short name of the model, for tables and plots.
        ngram_size (`int`): Its N.
        num_parameters (`int`): Number of weights, including the heads'.
        head_parameters (`int`): Number of weights of the heads.
        settings (`dict[str, Any]`): The options that identify the run.
        ensemble (`Ensemble`, *optional*):
            The best ensemble on the validation set, λ or weights; without that set, the model's own. 0 without heads;
            `None` for masked language models, which have no ensemble.
        history (`list[dict[str, float]]`): Trainer's log; empty without training.
        best_lambda (`float`, *optional*): The best λ on the validation set; `None` without that set.
        fit ([`EnsembleFit`], *optional*): The weights fitted on the validation set; `None` if there are none.
    """

    name: str
    ngram_size: int
    num_parameters: int
    head_parameters: int
    settings: dict[str, Any]
    ensemble: Ensemble | None
    history: list[dict[str, float]]
    best_lambda: float | None = field(default=None, kw_only=True)
    fit: EnsembleFit | None = field(default=None, kw_only=True)

    def ensembles(self) -> dict[str, Ensemble]:
        """
        Return the ensembles to compare in a table, by heading. Only one, the model without its heads, unless weights
        were fitted or are the model's own.
        """
        named = {WITHOUT_HEADS: 0.0}
        if self.fit is not None:
            named |= {"temperature": self.fit.temperature, "best λ": self.best_lambda, "fitted": self.fit.ensemble}
        elif self.ensemble is not None and not is_lambda(self.ensemble):
            named |= {"best λ": self.best_lambda, "weights": self.ensemble}
        return {name: ensemble for name, ensemble in named.items() if ensemble is not None}


@dataclass
class TaskResult(RunResult, ABC):
    """The base class of a task's results: a finished run, and how its metrics, tables and samples are shown."""

    # For the model card: the kind of model, such as "A language model", and its tag on the Hub.
    kind: ClassVar[str]
    pipeline_tag: ClassVar[str]
    # The metric that is plotted over λ.
    lambda_figure: ClassVar[str] = ""

    @abstractmethod
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the metrics by split and name, for `metrics.json`."""

    @abstractmethod
    def usage(self, name: str) -> str:
        """
        Return example code for the model card, which works without this package. `name` is the folder or repository of
        the model, as it is written in code.
        """

    @abstractmethod
    def tables(self) -> str:
        """Return the metrics as Markdown tables, for the model card."""

    @abstractmethod
    def sample_text(self) -> str:
        """Return examples of the model's output as Markdown, for the model card."""

    def over_lambda(self) -> dict[str, dict[float, float]]:
        """
        Return the metric to plot over λ, word perplexity or BLEU, by split and λ; without heads, only at λ = 0. Empty
        for masked language models, which have no ensemble, and without a split to plot.
        """
        return {}

    def with_weights(self) -> dict[str, float]:
        """Return the same metric of the fitted weights, or the model's own, by split; empty without weights."""
        return {}


def divergence(history: Sequence[dict[str, float]]) -> str | None:
    """Return the sentence about a training that diverged, given its log; `None` if it did not."""
    for entry in history:
        if DIVERGED in entry:
            return f"The training diverged in step {entry['step']}; its result is checkpoint-{entry[DIVERGED]}."
    return None


def describe(model: PreTrainedModel) -> dict[str, Any]:
    """
    Return the fields of a `RunResult` that describe its model: `name` (such as "wdr N=4"), `ngram_size`,
    `num_parameters` and `head_parameters`.
    """
    config = model.config
    has_heads = len(model.ngram_heads) > 0
    name = f"{config.ngram_target} N={config.ngram_size}" if has_heads else "plain"
    if has_heads and getattr(config, "wdr_compose", "all") == "masked":
        name = f"{name}, masked tokens"
    if getattr(config, "bow_loss_weight", 0):
        name = f"{name} + bow" if has_heads else "bow"
    return {
        "name": name,
        "ngram_size": config.ngram_size,
        "num_parameters": model.num_parameters(),
        "head_parameters": sum(parameter.numel() for parameter in model.ngram_heads.parameters()),
    }


def save_tables(result: TaskResult, path: Path) -> None:
    """Write the tables of a run as Markdown."""
    path.write_text(f"# {result.name}\n\n{result.tables()}\n", encoding="utf-8")


def save_metrics(result: TaskResult, path: Path) -> None:
    """
    Write the metrics of a run as JSON, with its model, settings and training log. Infinite numbers and NaN become
    `null`.
    """
    has_lambda = is_lambda(result.ensemble)
    metrics = {
        "model": result.name,
        "ensemble_lambda": result.ensemble if has_lambda else None,
        "ensemble_weights": None if has_lambda else result.ensemble,
        "fit": None if result.fit is None else asdict(result.fit),
        "num_parameters": result.num_parameters,
        "head_parameters": result.head_parameters,
        "splits": result.metrics(),
        "settings": result.settings,
        "history": result.history,
    }
    text = json.dumps(_finite(metrics), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Return a copy with `None` for infinite numbers and NaN, which JSON does not have, also in nested values."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lambda_table(
    results: Sequence[RunResult],
    unit: str,
    figures: Sequence[dict[str, tuple[int, dict[float, float]]]],
    mark: str = "*",
) -> list[list[str]]:
    """
    Return a table as rows of cells, the heading first, with a row per model and split and a column per λ. `mark`
    follows the value of the chosen λ, if a λ was chosen. A model without heads has one value, in the first column.

    Args:
        results (`Sequence[RunResult]`): The models.
        unit (`str`): Heading of the count, such as "words".
        figures (`Sequence[dict]`): For each model, by split: the count, and the metric by λ.
        mark (`str`, *optional*, defaults to `"*"`): The mark of the chosen λ.
    """
    lambdas = sorted({value for splits in figures for _, by_lambda in splits.values() for value in by_lambda})
    rows = [["model", "split", unit, *(f"λ={value:g}" for value in lambdas)]]
    for result, splits in zip(results, figures, strict=True):
        # Without heads, λ has no effect.
        shown = lambdas if result.head_parameters else lambdas[:1]
        marks = {result.ensemble: mark} if result.head_parameters else {}
        for split, (count, by_lambda) in splits.items():
            cells = [
                f"{by_lambda[value]:.2f}{marks.get(value, '')}" if value in by_lambda and value in shown else ""
                for value in lambdas
            ]
            rows.append([result.name, split, f"{count:,}", *cells])
    return rows


def ensemble_table(
    results: Sequence[RunResult],
    unit: str,
    figures: Sequence[dict[str, tuple[int, dict[Ensemble, float]]]],
    mark: str = "*",
) -> list[list[str]]:
    """
    Return a table as rows of cells, the heading first, with a row per model and split: the model without its heads,
    with the best temperature, with the best λ, with fitted weights. `mark` follows the value of the chosen ensemble.
    Arguments as for `lambda_table`, with the metric by ensemble.
    """
    headings = list(dict.fromkeys(name for result in results for name in result.ensembles()))
    rows = [["model", "split", unit, *headings]]
    for result, splits in zip(results, figures, strict=True):
        named = result.ensembles()
        for split, (count, by_ensemble) in splits.items():
            cells = [_cell(result, heading, named.get(heading), by_ensemble, mark) for heading in headings]
            rows.append([result.name, split, f"{count:,}", *cells])
    return rows


def _cell(
    result: RunResult, heading: str, ensemble: Ensemble | None, by_ensemble: dict[Ensemble, float], mark: str
) -> str:
    if ensemble not in by_ensemble:
        return ""
    # Several models may have different values of λ under one heading.
    note = f" ({ensemble:g})" if heading == "best λ" else ""
    is_chosen = result.head_parameters and ensemble == result.ensemble and heading != "best λ" * (ensemble == 0)
    return f"{by_ensemble[ensemble]:.2f}{note}{mark if is_chosen else ''}"


def describe_mark(results: Sequence[RunResult]) -> str:
    """Return what the mark in a table means; without a validation set, nothing was chosen."""
    is_chosen = all(result.best_lambda is not None for result in results)
    return "(* chosen on validation)" if is_chosen else "(* the model's own ensemble)"


def describe_fits(results: Sequence[RunResult]) -> str:
    """Return a line per model with fitted weights: the weights, and the temperature alone."""
    return "\n".join(
        f"{result.name}: fitted {describe_ensemble(result.fit.ensemble)} (next token, head 1, ...); temperature "
        f"alone {result.fit.temperature_weight:.2f}"
        for result in results
        if result.fit is not None
    )


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """
    Return a table as text with aligned columns: the first two to the left, the others to the right. The columns that
    do not fit into a line of 80 characters follow in further tables, which repeat the first two.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    room = TEXT_WIDTH - sum(widths[:2]) - len(GAP)
    groups, used = [[]], 0
    for i, width in enumerate(widths[2:], start=2):
        used += len(GAP) + width
        if used > room and groups[-1]:
            groups.append([])
            used = len(GAP) + width
        groups[-1].append(i)
    return "\n\n".join(_aligned(rows, [0, 1, *group], widths) for group in groups)


def _aligned(rows: Sequence[Sequence[str]], columns: Sequence[int], widths: Sequence[int]) -> str:
    """Return some columns of a table as text."""
    lines = []
    for row in rows:
        cells = [row[i].ljust(widths[i]) if i < 2 else row[i].rjust(widths[i]) for i in columns]
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)
