"""Plots of head diagnostics."""

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..method.ensemble import describe_ensemble
from .head_diagnostics import HeadDiagnostics


def plot_heads(by_name: Mapping[str, HeadDiagnostics]) -> Figure:
    """Plot perplexity and accuracy by depth, one curve per model, from diagnostics on the same text by model name."""
    figure, (left, right) = _panels(2)
    for name, found in by_name.items():
        left.plot(found.perplexities, marker="o", label=name)
        right.plot(found.accuracies, marker="o", label=name)
    left.set(yscale="log", ylabel="perplexity by token")
    # Labels like 200 instead of 2 x 10^2.
    left.yaxis.set(major_formatter="{x:g}", minor_formatter="{x:g}")
    right.set(ylabel="accuracy", ylim=(0, None))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    deepest = max(len(found.nlls) for found in by_name.values())
    for axes in (left, right):
        axes.set_xticks(range(deepest), ["next token", *(f"head {n}" for n in range(1, deepest))])
        axes.legend(fontsize="small")
    return figure


def plot_acceptance(by_name: Mapping[str, HeadDiagnostics]) -> Figure:
    """Plot the acceptance rate of each head's drafts after accepted ones, with error bars of two standard errors."""
    figure, (axes,) = _panels(1)
    for i, (name, found) in enumerate(by_name.items()):
        rates, counts = found.acceptance, found.num_drafts
        errors = [2 * math.sqrt(rate * (1 - rate) / max(n, 1)) for rate, n in zip(rates, counts, strict=True)]
        label = f"{name}: {found.tokens_per_pass:.2f} tokens per pass"
        if rates:
            axes.errorbar(range(1, len(rates) + 1), rates, errors, fmt=f"C{i}o-", capsize=4, label=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(ylim=(0, None), xlabel="head", ylabel="acceptance rate\nafter accepted drafts")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.legend(fontsize="small")
    return figure


def plot_gain(by_name: Mapping[str, HeadDiagnostics], by: str) -> Figure:
    """Plot the ensemble's gain, ± two standard errors, by `"place"` in the sentence or `"frequency"` of the token."""
    xlabel = {"place": "position in the sentence", "frequency": "count of the token"}[by]
    figure, (axes,) = _panels(1)
    axes.axhline(0, color="black", linewidth=1)
    sizes: dict[str, int] = {}
    for i, (name, found) in enumerate((name, found) for name, found in by_name.items() if found.acceptance):
        gains = [gain for gain in getattr(found, f"gain_by_{by}") if gain.num_tokens >= 0.005 * found.gain.num_tokens]
        sizes |= {gain.label: gain.num_tokens for gain in gains}
        # The bars of several models stand side by side.
        places = [list(sizes).index(gain.label) + 0.14 * i for gain in gains]
        errors = [2 * gain.standard_error for gain in gains]
        label = f"{name}, {describe_ensemble(found.ensemble)}"
        axes.errorbar(places, [gain.mean for gain in gains], errors, fmt="o", capsize=4, label=label)
    axes.set_xticks(range(len(sizes)), [f"{label}\n{count:,}" for label, count in sizes.items()], fontsize="small")
    axes.set(xlabel=f"{xlabel}, and number of tokens", ylabel="gain in nats per token (above 0: helps)")
    axes.legend(fontsize="small")
    return figure


def _panels(count: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(1 + 4.2 * count, 3.7), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, panels
