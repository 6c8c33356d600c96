"""What every run leaves to look at: tables, plots, a model card, the figures as JSON."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from transformers import PreTrainedModel

from ...evaluation.gradients import GRADIENT_DIVERSITY, plot_gradient_diversity
from ..trainer import loss_names

# From this ratio of the highest to the lowest value on, a logarithmic axis has too many labels.
MANY_TICKS = 5


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


def write_metrics(result: RunResult, splits: dict[str, Any], path: Path) -> None:
    metrics = {
        "model": result.name,
        "ensemble_lambda": result.ensemble_lambda,
        "num_parameters": result.num_parameters,
        "head_parameters": result.head_parameters,
        "splits": splits,
        "settings": result.settings,
        "history": result.history,
    }
    text = json.dumps(_finite(metrics), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no infinite numbers: a perplexity beyond all bounds is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_text(rows: Sequence[Sequence[str]]) -> str:
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
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cell.replace('*', ' ★') for cell in line)} |" for line in lines)


def plot_over_lambda(
    results: Sequence[RunResult],
    splits: Sequence[str],
    figures: Callable[[RunResult, str], dict[float, float]],
    ylabel: str,
    path: Path,
) -> None:
    """A figure over λ for every split and model, the chosen λ marked; a dashed line for a model without heads."""
    figure = Figure(figsize=(5 * len(splits), 4), layout="constrained")
    for axes, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
        for i, result in enumerate(results):
            by_lambda, color = figures(result, split), f"C{i}"
            if not result.head_parameters:
                axes.axhline(by_lambda[0.0], color=color, linestyle="--", label=result.name)
                continue
            axes.plot(list(by_lambda), list(by_lambda.values()), marker="o", color=color, label=result.name)
            chosen = result.ensemble_lambda
            axes.plot(chosen, by_lambda[chosen], marker="*", markersize=16, color=color)
        axes.set(title=split, xlabel="λ", ylabel=ylabel)
        axes.grid(alpha=0.3)
        axes.legend(title="★ chosen on validation" if any(r.head_parameters for r in results) else None)
    figure.savefig(path, dpi=120)


def save_training_plot(results: Sequence[RunResult], path: Path) -> None:
    """The losses of the next word and of every head, and the validation perplexity, over the steps."""
    # Two panels in a row: more would be small on a page.
    num_rows = -(-(len(results) + 1) // 2)
    figure = Figure(figsize=(10, 4 * num_rows), layout="constrained")
    panels = list(figure.subplots(num_rows, 2).flat)
    for axes in panels[len(results) + 1 :]:
        axes.remove()
    *by_model, last = panels[: len(results) + 1]
    for axes, result in zip(by_model, results, strict=True):
        for name in ("masked_word_loss", *loss_names(result.ngram_size)):
            _plot(axes, result.history, name, label=name.removesuffix("_loss").replace("_", " "))
        axes.set(title=f"{result.name}: training loss", xlabel="step", ylabel="NLL by token")
    for i, result in enumerate(results):
        style = {"color": f"C{i}", "marker": "."}
        has_ensemble = result.head_parameters and result.ensemble_lambda is not None
        label = f"{result.name}, λ=0" if has_ensemble else result.name
        _plot(last, result.history, "eval_perplexity", label=label, **style)
        if has_ensemble:
            _plot(last, result.history, "eval_best_perplexity", label="the same, best λ", linestyle=":", **style)
    last.set(title="validation", xlabel="step", ylabel="perplexity by token", yscale="log")
    # 200, not 2 x 10^2; and not all of 10, 20, 30, ... where they would stand on top of each other.
    low, high = last.get_ylim()
    if high > MANY_TICKS * low:
        last.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    last.yaxis.set_major_formatter("{x:g}")
    last.yaxis.set_minor_formatter("{x:g}")
    for axes in (*by_model, last):
        axes.grid(alpha=0.3, which="both")
        # A run may be too short for a single log or evaluation.
        if axes.has_data():
            axes.legend()
    figure.savefig(path, dpi=120)


def save_gradient_diversity_plot(results: Sequence[RunResult], path: Path) -> bool:
    """Gradient diversity over the steps, for the runs that logged it; whether there are any."""
    histories = {
        result.name: result.history
        for result in results
        if any(GRADIENT_DIVERSITY in entry for entry in result.history)
    }
    if histories:
        plot_gradient_diversity(histories, path)
    return bool(histories)


def _plot(axes: Axes, history: list[dict[str, float]], name: str, **style) -> None:
    points = [(entry["step"], entry[name]) for entry in history if name in entry and math.isfinite(entry[name])]
    if points:
        # A single point has no line.
        axes.plot(*zip(*points, strict=True), **{"marker": "." if len(points) == 1 else None, **style})


def write_model_card(
    result: RunResult, path: Path, *, kind: str, tags: Sequence[str], usage: str, tables: str, samples: str
) -> None:
    """
    Args:
        kind (`str`): What the model is, as in "A language model".
        tags (`Sequence[str]`): Lines for the head of the card.
        usage (`str`): Python code that loads and uses it.
        tables (`str`): The results.
        samples (`str`): What the model says.
    """
    settings = "\n".join(f"- `{name}`: {value}" for name, value in result.settings.items() if value is not None)
    its_lambda = without_it = best_lambda = ""
    if result.ensemble_lambda is not None:
        its_lambda = f"; the ensemble's λ is {result.ensemble_lambda:g}"
        without_it = " `generate(..., ensemble_lambda=0.0)` is the model without the ensemble."
        best_lambda = (
            "★: the λ that is best on validation, saved with the model.\n\n![The ensemble over λ](lambda_sweep.png)\n"
        )
    head = "\n".join(["library_name: transformers", *tags, "tags:", "- ngram-wdr-hf", "- n-gram-prediction"])
    path.write_text(
        f"""---
{head}
---

# {result.name}

{kind} with N-gram heads, after [*N-gram Prediction and Word Difference Representations for Language \
Modeling*](https://hf.co/papers/2409.03295), trained with `ngram_wdr_hf`. {result.num_parameters:,} parameters, \
{result.head_parameters:,} of them in the heads{its_lambda}.

## Use

```python
{usage}
```

With `ngram_wdr_hf` installed and imported, `trust_remote_code` is not needed.{without_it}

## Results

{tables}

{best_lambda}![Training](training.png)

## Sample

{samples}

## Settings

{settings}
""",
        encoding="utf-8",
    )
