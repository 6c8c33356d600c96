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

# Standard errors of an error bar.
NUM_ERRORS = 2.0
# Bins with a smaller share of the tokens are not shown.
LEAST_SHARE = 0.005
# Distance between the bars of two models.
SHIFT = 0.14
SIZE = (5.4, 3.7)


def plot_heads(by_name: Mapping[str, HeadDiagnostics], path: str | Path | None = None) -> Figure:
    r"""
    Plot perplexity and accuracy by depth, one curve per model, and return the figure.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): The diagnostics of each model by its name, on the same text.
        path (`str` or `Path`, *optional*): Where to save the figure; not saved by default.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, diagnostics in by_name.items():
        left.plot(diagnostics.perplexities, marker="o", label=name)
        right.plot(diagnostics.accuracies, marker="o", label=name)
    left.set(yscale="log", ylabel="perplexity by token")
    # Labels like 200 instead of 2 x 10^2.
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    right.set(ylabel="accuracy", ylim=(0, None))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    deepest = max(len(diagnostics.nlls) for diagnostics in by_name.values())
    for axes in (left, right):
        axes.set_xticks(range(deepest), ["next token", *(f"head {n}" for n in range(1, deepest))])
    return _finish(figure, path)


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
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for i, (name, diagnostics) in enumerate(by_name.items()):
        if not diagnostics.acceptance:
            continue
        label = f"{name}, text: {diagnostics.tokens_per_pass:.2f} tokens per pass"
        _plot_shares(axes, diagnostics.acceptance, diagnostics.num_drafts, marker="o", color=f"C{i}", label=label)
        if generated and name in generated:
            label = f"{name}, generation: {generated[name].tokens_per_forward:.2f} tokens per pass"
            style = {"marker": "s", "linestyle": ":", "color": f"C{i}", "label": label}
            _plot_shares(axes, *acceptance_of(generated[name]), **style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(ylim=(0, None), xlabel="head", ylabel="acceptance rate\nafter accepted drafts")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    return _finish(figure, path)


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


def _plot_shares(axes: Axes, shares: Sequence[float], num_checked: Sequence[int], **style) -> None:
    errors = [
        NUM_ERRORS * math.sqrt(share * (1 - share) / max(count, 1))
        for share, count in zip(shares, num_checked, strict=True)
    ]
    axes.errorbar(range(1, len(shares) + 1), shares, yerr=errors, capsize=4, **style)


def plot_gain(by_name: Mapping[str, HeadDiagnostics], by: str, path: str | Path | None = None) -> Figure:
    r"""
    Plot the ensemble's gain by group of tokens, with error bars of two standard errors, and return the figure. Groups
    of fewer than 0.5% of the tokens are left out.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): As for [`plot_heads`]; models without heads are left out.
        by (`str`): The groups: `"place"`, by position in the sentence, or `"frequency"`, by count of the token.
        path (`str` or `Path`, *optional*): Where to save the figure; not saved by default.
    """
    xlabel = {"place": "position in the sentence", "frequency": "count of the token"}[by]
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color="black", linewidth=1)
    sizes: dict[str, int] = {}
    for i, (name, diagnostics) in enumerate(by_name.items()):
        if not diagnostics.acceptance:
            continue
        least = LEAST_SHARE * diagnostics.gain.num_tokens
        gains = [gain for gain in getattr(diagnostics, f"gain_by_{by}") if gain.num_tokens >= least]
        sizes |= {gain.label: gain.num_tokens for gain in gains}
        axes.errorbar(
            [list(sizes).index(gain.label) + SHIFT * i for gain in gains],
            [gain.mean for gain in gains],
            yerr=[NUM_ERRORS * gain.standard_error for gain in gains],
            marker="o",
            linestyle="none",
            capsize=4,
            color=f"C{i}",
            label=f"{name}, {describe_ensemble(diagnostics.ensemble)}",
        )
    axes.set_xticks(range(len(sizes)), [f"{label}\n{count:,}" for label, count in sizes.items()], fontsize="small")
    axes.set(xlabel=f"{xlabel}, and number of tokens", ylabel="gain in nats per token (above 0: helps)")
    return _finish(figure, path)


def _finish(figure: Figure, path: str | Path | None) -> Figure:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure
