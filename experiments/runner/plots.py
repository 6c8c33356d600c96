"""Plots of a table: a metric over λ, gradient diversity over epochs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from ngram_wdr_hf.evaluation.gradient_diversity import GRADIENT_DIVERSITY

from .results import WITHOUT_HEADS, Results
from .stats import interval, summarize
from .tables import Experiment


def plot_lambda(experiment: Experiment, results: Results, group: str, path: Path) -> None:
    """
    Plot the metric over λ for each system with heads, with the standard deviation over seeds, on the split with the
    most λ, the test set if possible. A dashed line is the plain model.
    """
    split = max(results.splits(group), key=lambda name: len(results.lambdas(group, name)))
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    lambdas = results.lambdas(group, split)
    for system in experiment.systems:
        found = [(value, results.values(group, system, split, f"λ={value:g}")) for value in lambdas]
        points = [(value, summarize([*by_seed.values()])) for value, by_seed in found if by_seed]
        if points:
            values, summaries = zip(*points, strict=True)
            _with_bars(axes, values, summaries, experiment.label(system))
    plain = results.values(group, "plain", split, WITHOUT_HEADS)
    if plain:
        axes.axhline(mean(plain.values()), color="black", linestyle="--", label=experiment.label("plain"))
    axes.set(title=split, xlabel="λ", ylabel=experiment.content["metric"])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _with_bars(axes, values: Sequence[float], summaries: Sequence, label: str) -> None:
    bars = [summary.deviation or 0.0 for summary in summaries]
    axes.errorbar(values, [summary.mean for summary in summaries], yerr=bars, marker="o", capsize=2, label=label)


def plot_diversity(experiment: Experiment, results: Results, group: str, path: Path) -> None:
    """Plot the mean gradient diversity over epochs, with the 95 % interval over seeds."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for i, system in enumerate(experiment.systems):
        by_epoch: dict[float, list[float]] = {}
        for record in results.of(group, system):
            for _, epoch, value in record[GRADIENT_DIVERSITY]:
                by_epoch.setdefault(epoch, []).append(value)
        points = [(epoch, interval(by_epoch[epoch])) for epoch in sorted(by_epoch)]
        if not points:
            continue
        epochs = [epoch for epoch, _ in points]
        axes.plot(epochs, [point.mean for _, point in points], color=f"C{i}", label=experiment.label(system))
        if all(point.low is not None for _, point in points):
            low, high = [point.low for _, point in points], [point.high for _, point in points]
            axes.fill_between(epochs, low, high, color=f"C{i}", alpha=0.2, linewidth=0)
    axes.set(xlabel="epoch", ylabel="gradient diversity")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
