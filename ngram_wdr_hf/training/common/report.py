"""What every run leaves to read: tables, a model card, the figures as JSON."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedModel


@dataclass
class RunResult:
    """
    A finished run.

    Args:
        name (`str`): Which model, in a word or two.
        ngram_size (`int`): Its N.
        num_parameters (`int`): All weights, the heads' included.
        head_parameters (`int`): The heads' weights.
        settings (`dict[str, Any]`): How it was made.
        ensemble_lambda (`float`, *optional*): The λ saved with the model; `None` if it can have no ensemble.
        history (`list[dict[str, float]]`): Trainer's log; empty without training.
    """

    name: str
    ngram_size: int
    num_parameters: int
    head_parameters: int
    settings: dict[str, Any]
    ensemble_lambda: float | None
    history: list[dict[str, float]]


@dataclass
class TaskResult(RunResult, ABC):
    """A finished run of a script, and what its report says about its task."""

    # What the model is, as in "A language model", its tag on the Hub, and Python code that loads and uses it.
    kind: ClassVar[str]
    pipeline_tag: ClassVar[str]
    usage: ClassVar[str]
    # What is plotted over λ.
    lambda_figure: ClassVar[str] = ""

    @abstractmethod
    def metrics(self) -> dict[str, dict[str, Any]]:
        """The figures by split, for `metrics.json`."""

    @abstractmethod
    def tables(self) -> str:
        """The results as Markdown, for the model card."""

    @abstractmethod
    def sample_text(self) -> str:
        """Some of the model's output as Markdown, for the model card."""

    def over_lambda(self) -> dict[str, dict[float, float]]:
        """A figure by split and λ; empty without an ensemble."""
        return {}


def describe(model: PreTrainedModel) -> dict[str, Any]:
    """What a result says about its model."""
    config = model.config
    has_heads = len(model.ngram_heads) > 0
    name = f"{config.ngram_target} N={config.ngram_size}" if has_heads else "plain"
    if has_heads and getattr(config, "wdr_compose", "all") == "masked":
        name = f"{name}, masked words"
    if getattr(config, "bow_loss_weight", 0):
        name = f"{name} + bow" if has_heads else "bow"
    return {
        "name": name,
        "ngram_size": config.ngram_size,
        "num_parameters": model.num_parameters(),
        "head_parameters": sum(parameter.numel() for parameter in model.ngram_heads.parameters()),
    }


def save_metrics(result: TaskResult, path: Path) -> None:
    """Write the figures of a run as JSON."""
    metrics = {
        "model": result.name,
        "ensemble_lambda": result.ensemble_lambda,
        "num_parameters": result.num_parameters,
        "head_parameters": result.head_parameters,
        "splits": result.metrics(),
        "settings": result.settings,
        "history": result.history,
    }
    text = json.dumps(_finite(metrics), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no infinite numbers: an infinite perplexity is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lambda_table(
    results: Sequence[RunResult], unit: str, figures: Sequence[dict[str, tuple[int, dict[float, float]]]]
) -> list[list[str]]:
    """
    A row for every model and split, a column for every λ; a star marks the λ that was chosen.

    Args:
        results (`Sequence[RunResult]`): The models.
        unit (`str`): What was counted, as in "words".
        figures (`Sequence[dict]`): For each model, by split: how many of them, and the figure by λ.
    """
    lambdas = sorted({value for splits in figures for _, by_lambda in splits.values() for value in by_lambda})
    rows = [["model", "split", unit, *(f"λ={value:g}" for value in lambdas)]]
    for result, splits in zip(results, figures, strict=True):
        # Without heads there is nothing to mix: one figure says it all.
        shown = lambdas if result.head_parameters else lambdas[:1]
        marks = {result.ensemble_lambda: "*"} if result.head_parameters else {}
        for split, (count, by_lambda) in splits.items():
            cells = [
                f"{by_lambda[value]:.2f}{marks.get(value, '')}" if value in by_lambda and value in shown else ""
                for value in lambdas
            ]
            rows.append([result.name, split, f"{count:,}", *cells])
    return rows


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cell.replace('*', ' ★') for cell in line)} |" for line in lines)


def save_model_card(result: TaskResult, path: Path) -> None:
    """Write the model card of a run."""
    settings = "\n".join(f"- `{name}`: {value}" for name, value in result.settings.items() if value is not None)
    its_lambda = without_it = best_lambda = ""
    if result.ensemble_lambda is not None:
        its_lambda = f"; the ensemble's λ is {result.ensemble_lambda:g}"
        without_it = " `generate(..., ensemble_lambda=0.0)` is the model without the ensemble."
        best_lambda = (
            "★: the λ that is best on validation, saved with the model.\n\n![The ensemble over λ](lambda_sweep.png)\n"
        )
    path.write_text(
        f"""---
library_name: transformers
pipeline_tag: {result.pipeline_tag}
tags:
- ngram-wdr-hf
- n-gram-prediction
---

# {result.name}

{result.kind} with N-gram heads, after [*N-gram Prediction and Word Difference Representations for Language \
Modeling*](https://hf.co/papers/2409.03295), trained with `ngram_wdr_hf`. {result.num_parameters:,} parameters, \
{result.head_parameters:,} of them in the heads{its_lambda}.

## Use

```python
{result.usage}
```

With `ngram_wdr_hf` installed and imported, `trust_remote_code` is not needed.{without_it}

## Results

{result.tables()}

{best_lambda}![Training](training.png)

## Sample

{result.sample_text()}

## Settings

{settings}
""",
        encoding="utf-8",
    )
