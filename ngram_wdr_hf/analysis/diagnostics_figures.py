"""Plots of head diagnostics."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..decoding.statistics import SpeculationStatistics
from ..method.ensemble import describe_ensemble
from .diagnostics import HeadDiagnostics
from .gain_bins import GainBin

# Standard errors of an error bar.
NUM_ERRORS = 2.0
# Bins with a smaller share of the tokens are not shown.
LEAST_SHARE = 0.005
# Distance between the bars of two models.
SHIFT = 0.14

AXIS_OF = {"place": "position in the sentence", "frequency": "count of the token"}


def plot_heads(by_name: Mapping[str, HeadDiagnostics], path: str | Path | None = None) -> Figure:
    r"""
    Plot perplexity and accuracy by depth, one curve per model, and return the figure.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): The diagnostics of each model by its name, on the same text.
        path (`str` or `Path`, *optional*): Where to save the figure; not saved by default.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    deepest = max(len(diagnostics.nlls) for diagnostics in by_name.values())
    for i, (name, diagnostics) in enumerate(by_name.items()):
        depths = range(len(diagnostics.nlls))
        left.plot(depths, diagnostics.perplexities, marker="o", color=f"C{i}", label=name)
        right.plot(depths, diagnostics.accuracies, marker="o", color=f"C{i}", label=name)
    _set_perplexity_axis(left)
    left.set(ylabel="perplexity by token", title="Perplexity")
    right.set(ylabel="accuracy", ylim=(0, None), title="Accuracy")
    right.yaxis.set_major_formatter(PercentFormatter(1))
    labels = ["next token", *(f"head {n}" for n in range(1, deepest))]
    for axes in (left, right):
        axes.set_xticks(range(deepest), labels)
        _finish(axes)
    return _save(figure, path)


def plot_levels(perplexities: Mapping[str, Sequence[float]]) -> Figure:
    r"""
    Plot the perplexity of masked tokens by level, for masked language models, and return the figure.

    Args:
        perplexities (`Mapping[str, Sequence[float]]`): For each model by name, the perplexity of its own prediction,
            then that of each head.
    """
    figure = Figure(figsize=(5.4, 3.7), layout="constrained")
    axes = figure.subplots()
    for name, values in perplexities.items():
        axes.plot(range(len(values)), values, marker="o", label=name)
    most = max(map(len, perplexities.values()))
    axes.set_xticks(range(most), ["masked word", *(f"level {n}" for n in range(1, most))])
    _set_perplexity_axis(axes)
    axes.set_ylabel("perplexity of masked tokens")
    _finish(axes)
    return figure


def plot_acceptance(
    by_name: Mapping[str, HeadDiagnostics],
    generated: Mapping[str, SpeculationStatistics] | None = None,
    path: str | Path | None = None,
) -> Figure:
    r"""
    Plot the acceptance rate of each head's drafts after accepted ones, on the text and in generation, with error bars
    of two standard errors. Return the figure.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): As for [`plot_heads`]; models without heads are left out.
        generated (`Mapping[str, SpeculationStatistics]`, *optional*): Results of [`draft_statistics`] by model name;
            by default, only the text is shown.
        path (`str` or `Path`, *optional*): Where to save the figure; not saved by default.
    """
    figure = Figure(figsize=(5.4, 3.7), layout="constrained")
    axes = figure.subplots()
    generated = generated or {}
    for i, (name, diagnostics) in enumerate(by_name.items()):
        if not diagnostics.acceptance:
            continue
        label = f"{name}, text: {diagnostics.tokens_per_pass:.2f} tokens per pass"
        _plot_shares(axes, diagnostics.acceptance, diagnostics.num_drafts, marker="o", color=f"C{i}", label=label)
        if name in generated:
            shares, num_checked = acceptance_of(generated[name])
            label = f"{name}, generation: {generated[name].tokens_per_forward:.2f} tokens per pass"
            _plot_shares(axes, shares, num_checked, marker="s", linestyle=":", color=f"C{i}", label=label)
    deepest = max((len(diagnostics.acceptance) for diagnostics in by_name.values()), default=0)
    axes.set_xticks(range(1, deepest + 1), [f"head {n}" for n in range(1, deepest + 1)])
    axes.set(ylim=(0, None), ylabel="acceptance rate\nafter accepted drafts")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(axes)
    return _save(figure, path)


def acceptance_of(statistics: SpeculationStatistics) -> tuple[list[float], list[int]]:
    """
    Return, for each head in generation, the acceptance rate of its drafts where all earlier drafts were accepted (0 if
    there are none), and the number of such drafts.
    """
    # From rates, not counts, because fewer heads draft near the end of a text.
    before = [1.0, *statistics.acceptance]
    shares = [now / last if last else 0.0 for last, now in itertools.pairwise(before)]
    num_checked = [round(last * drafted) for last, drafted in zip(before, statistics.num_drafted, strict=False)]
    return shares, num_checked


def plot_gain(by_name: Mapping[str, HeadDiagnostics], by: str, path: str | Path | None = None) -> Figure:
    r"""
    Plot the ensemble's gain by group of tokens, with error bars of two standard errors, and return the figure.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): As for [`plot_heads`]; models without heads are left out.
        by (`str`): The groups: `"place"`, by position in the sentence, or `"frequency"`, by count of the token.
        path (`str` or `Path`, *optional*): Where to save the figure; not saved by default.
    """
    figure = Figure(figsize=(5.4, 3.7), layout="constrained")
    axes = figure.subplots()
    with_heads = {name: diagnostics for name, diagnostics in by_name.items() if diagnostics.acceptance}
    sizes = {gain.label: gain.num_tokens for diagnostics in with_heads.values() for gain in gains_by(diagnostics, by)}
    labels = list(sizes)
    axes.axhline(0, color="black", linewidth=1)
    for i, (name, diagnostics) in enumerate(by_name.items()):
        if name not in with_heads:
            continue
        gains = gains_by(diagnostics, by)
        shift = SHIFT * (list(with_heads).index(name) - (len(with_heads) - 1) / 2)
        axes.errorbar(
            [labels.index(gain.label) + shift for gain in gains],
            [gain.mean for gain in gains],
            yerr=[NUM_ERRORS * gain.standard_error for gain in gains],
            marker="o",
            linestyle="none",
            capsize=4,
            color=f"C{i}",
            label=f"{name}, {describe_ensemble(diagnostics.ensemble)}",
        )
    axes.set_xticks(range(len(labels)), [f"{label}\nn={_short(sizes[label])}" for label in labels])
    axes.tick_params(axis="x", labelsize="small")
    axes.set(xlabel=AXIS_OF[by], ylabel="gain in nats per token (above 0: helps)")
    _finish(axes)
    return _save(figure, path)


def gains_by(diagnostics: HeadDiagnostics, by: str) -> list[GainBin]:
    """
    Return the gains by `"place"` (position in the sentence) or `"frequency"` (count of the token), without bins of
    fewer than 0.5% of the tokens.
    """
    if by not in AXIS_OF:
        raise ValueError(f"`by` must be one of {', '.join(AXIS_OF)}, got {by!r}.")
    bins = {"place": diagnostics.gain_by_place, "frequency": diagnostics.gain_by_frequency}[by]
    return [gain for gain in bins if gain.num_tokens >= LEAST_SHARE * diagnostics.gain.num_tokens]


def _plot_shares(axes: Axes, shares: Sequence[float], num_checked: Sequence[int], **style) -> None:
    errors = [
        math.sqrt(share * (1 - share) / count) if count else 0.0
        for share, count in zip(shares, num_checked, strict=True)
    ]
    axes.errorbar(range(1, len(shares) + 1), shares, yerr=[NUM_ERRORS * error for error in errors], capsize=4, **style)


def _set_perplexity_axis(axes: Axes) -> None:
    """Make the y axis logarithmic, with labels like 200 instead of 2 x 10^2."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def _save(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _short(count: int) -> str:
    """Return a short text for a count, to fit under a bar: 1,234 as `1.2k`; below 1,000, the count itself."""
    return f"{count}" if count < 1000 else f"{count / 1000:.2g}k" if count < 10_000 else f"{count / 1000:,.0f}k"
