"""The plots that every run leaves."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ...evaluation.gradients import GRADIENT_DIVERSITY, plot_gradient_diversity
from ..trainer import loss_names
from .report import RunResult, TaskResult

# Above this ratio of the highest to the lowest value, a logarithmic axis has too many labels.
MANY_TICKS = 5


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


def save_lambda_plot(results: Sequence[TaskResult], path: Path) -> None:
    """The task's figure over λ, for the splits that all models have it for; no plot without any."""
    splits = [split for split in results[0].over_lambda() if all(split in other.over_lambda() for other in results)]
    if splits:
        label = results[0].lambda_figure
        plot_over_lambda(results, splits, lambda result, split: result.over_lambda()[split], label, path)


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
    # 200, not 2 x 10^2; and not all of 10, 20, 30, ... where the labels would overlap.
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
    """Gradient diversity over the steps, for the runs that logged it. Returns whether there are any."""
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
        # A line needs two points.
        axes.plot(*zip(*points, strict=True), **{"marker": "." if len(points) == 1 else None, **style})
