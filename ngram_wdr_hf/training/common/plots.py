"""Plots of a run."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ...evaluation.gradient_diversity import GRADIENT_DIVERSITY, plot_gradient_diversity
from ...method.ensemble import is_lambda
from ..trainer import loss_names
from .report import RunResult, TaskResult

# A logarithmic axis with a larger ratio of highest to lowest value gets fewer labels.
MAX_RATIO = 5


def plot_over_lambda(
    results: Sequence[RunResult],
    splits: Sequence[str],
    figures: Callable[[RunResult, str], dict[float, float]],
    ylabel: str,
    path: Path,
    weighted: Callable[[RunResult, str], float | None] = lambda result, split: None,
) -> None:
    """
    Plot a metric over λ and save it to `path`: one panel per split, one curve per model with a star at its chosen λ,
    dashed lines for models without heads, and dotted lines for ensembles with weights. `figures` returns the metric by
    λ of a result and a split, `weighted` that of its weights, `None` if it has none.
    """
    figure = Figure(figsize=(5 * len(splits), 4), layout="constrained")
    for axes, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
        for i, result in enumerate(results):
            by_lambda, color = figures(result, split), f"C{i}"
            if not result.head_parameters:
                axes.axhline(by_lambda[0.0], color=color, linestyle="--", label=result.name)
                continue
            axes.plot(list(by_lambda), list(by_lambda.values()), marker="o", color=color, label=result.name)
            figure_of_weights = weighted(result, split)
            if figure_of_weights is not None:
                axes.axhline(figure_of_weights, color=color, linestyle=":", label=f"{result.name}, fitted weights")
            if result.ensemble in by_lambda:
                axes.plot(result.ensemble, by_lambda[result.ensemble], marker="*", markersize=16, color=color)
        axes.set(title=split, xlabel="λ", ylabel=ylabel)
        axes.grid(alpha=0.3)
        has_stars = any(result.head_parameters and is_lambda(result.ensemble) for result in results)
        axes.legend(title="★ chosen on validation" if has_stars else None)
    figure.savefig(path, dpi=120)


def save_lambda_plot(results: Sequence[TaskResult], path: Path) -> None:
    """
    Plot the task's metric over λ for the splits that all models have, and save it to `path`. Without such splits, save
    nothing.
    """
    splits = [split for split in results[0].over_lambda() if all(split in result.over_lambda() for result in results)]
    if splits:
        label = results[0].lambda_figure
        plot_over_lambda(
            results,
            splits,
            lambda result, split: result.over_lambda()[split],
            label,
            path,
            lambda result, split: result.with_weights().get(split),
        )


def save_training_plot(results: Sequence[RunResult], path: Path) -> None:
    """
    Plot over the training steps, and save to `path`: one panel per model with the training loss of each depth, and one
    with the validation perplexity of all models.
    """
    num_rows = -(-(len(results) + 1) // 2)
    figure = Figure(figsize=(10, 4 * num_rows), layout="constrained")
    panels = list(figure.subplots(num_rows, 2).flat)
    for axes in panels[len(results) + 1 :]:
        axes.remove()
    *by_model, last = panels[: len(results) + 1]
    for axes, result in zip(by_model, results, strict=True):
        for name in ("masked_word_loss", *loss_names(result.ngram_size)):
            _plot(axes, result.history, name, label=name.removesuffix("_loss").replace("_", " "))
        axes.set(title=f"{result.name}: training loss", xlabel="step", ylabel="NLL per token")
    for i, result in enumerate(results):
        style = {"color": f"C{i}", "marker": "."}
        has_ensemble = result.head_parameters and result.ensemble is not None
        label = f"{result.name}, λ=0" if has_ensemble else result.name
        _plot(last, result.history, "eval_perplexity", label=label, **style)
        if has_ensemble:
            is_fitted = any("eval_fitted_perplexity" in entry for entry in result.history)
            name, kind = ("fitted", "fitted weights") if is_fitted else ("best", "best λ")
            style |= {"label": f"{result.name}, {kind}", "linestyle": ":"}
            _plot(last, result.history, f"eval_{name}_perplexity", **style)
    last.set(title="validation", xlabel="step", ylabel="perplexity by token", yscale="log")
    # Plain numbers instead of powers of ten, and few enough that the labels do not overlap.
    low, high = last.get_ylim()
    if high > MAX_RATIO * low:
        last.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    last.yaxis.set_major_formatter("{x:g}")
    last.yaxis.set_minor_formatter("{x:g}")
    for axes in (*by_model, last):
        axes.grid(alpha=0.3, which="both")
        # A short run may have no log entry.
        if axes.has_data():
            axes.legend()
    figure.savefig(path, dpi=120)


def save_gradient_diversity_plot(results: Sequence[RunResult], path: Path) -> bool:
    """
    Plot gradient diversity over the steps for the runs that logged it, and save it to `path`. Return whether there are
    any; if not, save nothing.
    """
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
        # A single point shows only with a marker.
        axes.plot(*zip(*points, strict=True), **{"marker": "." if len(points) == 1 else None, **style})
