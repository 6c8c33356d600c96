"""The head diagnostics of one model or several as plots, and in a sentence each what they show."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..decoding.statistics import SpeculationStatistics
from .diagnostics import HeadDiagnostics
from .gain_bins import GainBin

# A mean that is further from 0 than so many standard errors is hardly noise.
CLEAR = 2.0
# A bin with a smaller share of the tokens, often the same few words, is neither drawn nor named.
LEAST_SHARE = 0.005
# How far apart the bars of two models are.
SHIFT = 0.14

AXIS_OF = {"place": "place in the sentence", "frequency": "times the token was seen"}
TOKENS_OF = {"place": "at place {} of a sentence", "frequency": "seen {} times"}


def plot_heads(by_name: Mapping[str, HeadDiagnostics], path: str | Path | None = None) -> Figure:
    r"""
    Perplexity and accuracy by depth.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): The diagnostics of each model, on the same text.
        path (`str` or `Path`, *optional*): Where to save the picture.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    deepest = max(len(found.nlls) for found in by_name.values())
    for i, (name, found) in enumerate(by_name.items()):
        depths = range(len(found.nlls))
        left.plot(depths, found.perplexities, marker="o", color=f"C{i}", label=name)
        right.plot(depths, found.accuracies, marker="o", color=f"C{i}", label=name)
    _set_perplexity_axis(left)
    left.set(ylabel="perplexity by token", title="How sure each head is")
    right.set(ylabel="right words", ylim=(0, None), title="How often its first choice is right")
    right.yaxis.set_major_formatter(PercentFormatter(1))
    labels = ["next word", *(f"head {n}" for n in range(1, deepest))]
    for axes in (left, right):
        axes.set_xticks(range(deepest), labels)
        _finish(axes)
    return _saved(figure, path)


def plot_levels(perplexities: Mapping[str, Sequence[float]]) -> Figure:
    r"""
    Of masked language models, the perplexity of the masked word by level.

    Args:
        perplexities (`Mapping[str, Sequence[float]]`): Those of each model, by itself and by its heads.
    """
    figure = Figure(figsize=(5.4, 3.7), layout="constrained")
    axes = figure.subplots()
    for name, values in perplexities.items():
        axes.plot(range(len(values)), values, marker="o", label=name)
    most = max(map(len, perplexities.values()))
    axes.set_xticks(range(most), ["masked word", *(f"level {n}" for n in range(1, most))])
    _set_perplexity_axis(axes)
    axes.set_ylabel("perplexity of masked words")
    _finish(axes)
    return figure


def plot_acceptance(
    by_name: Mapping[str, HeadDiagnostics],
    generated: Mapping[str, SpeculationStatistics] | None = None,
    path: str | Path | None = None,
) -> Figure:
    r"""
    How often the draft of each head stands if all before it do, on the text and in generation.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): As for [`plot_heads`]; models without heads are left out.
        generated (`Mapping[str, SpeculationStatistics]`, *optional*): What [`draft_statistics`] found for each model.
        path (`str` or `Path`, *optional*): Where to save the picture.
    """
    figure = Figure(figsize=(5.4, 3.7), layout="constrained")
    axes = figure.subplots()
    generated = generated or {}
    for i, (name, found) in enumerate(by_name.items()):
        if not found.acceptance:
            continue
        label = f"{name}, the text: {found.tokens_per_pass:.2f} tokens a pass"
        _plot_shares(axes, found.acceptance, found.num_drafts, marker="o", color=f"C{i}", label=label)
        if name in generated:
            shares, tried = acceptance_of(generated[name])
            label = f"{name}, generating: {generated[name].tokens_per_forward:.2f} tokens a pass"
            _plot_shares(axes, shares, tried, marker="s", linestyle=":", color=f"C{i}", label=label)
    deepest = max((len(found.acceptance) for found in by_name.values()), default=0)
    axes.set_xticks(range(1, deepest + 1), [f"head {n}" for n in range(1, deepest + 1)])
    axes.set(ylim=(0, None), ylabel="drafts that stand,\nof those after drafts that stood")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(axes)
    return _saved(figure, path)


def acceptance_of(statistics: SpeculationStatistics) -> tuple[list[float], list[int]]:
    """For each head how often its draft stood in generation if all before it did, and how often that was."""
    # Near the end of a text fewer heads draft: of the shares that stood, those before are of as many drafts.
    before = [1.0, *statistics.acceptance]
    shares = [now / last if last else 0.0 for last, now in itertools.pairwise(before)]
    tried = [round(last * drafted) for last, drafted in zip(before, statistics.num_drafted, strict=False)]
    return shares, tried


def plot_gain(by_name: Mapping[str, HeadDiagnostics], by: str, path: str | Path | None = None) -> Figure:
    r"""
    The ensemble's gain, with two standard errors to each side.

    Args:
        by_name (`Mapping[str, HeadDiagnostics]`): As for [`plot_heads`]; models without heads are left out.
        by (`str`): `"place"` in the sentence, or `"frequency"`.
        path (`str` or `Path`, *optional*): Where to save the picture.
    """
    figure = Figure(figsize=(5.4, 3.7), layout="constrained")
    axes = figure.subplots()
    with_heads = {name: found for name, found in by_name.items() if found.acceptance}
    sizes = {gain.label: gain.num_tokens for found in with_heads.values() for gain in gains_by(found, by)}
    labels = list(sizes)
    axes.axhline(0, color="black", linewidth=1)
    for i, (name, found) in enumerate(by_name.items()):
        if name not in with_heads:
            continue
        gains = gains_by(found, by)
        shift = SHIFT * (list(with_heads).index(name) - (len(with_heads) - 1) / 2)
        axes.errorbar(
            [labels.index(gain.label) + shift for gain in gains],
            [gain.mean for gain in gains],
            yerr=[CLEAR * gain.standard_error for gain in gains],
            marker="o",
            linestyle="none",
            capsize=4,
            color=f"C{i}",
            label=f"{name}, λ={found.ensemble_lambda:g}",
        )
    axes.set_xticks(range(len(labels)), [f"{label}\nn={_short(sizes[label])}" for label in labels])
    axes.tick_params(axis="x", labelsize="small")
    axes.set(xlabel=AXIS_OF[by], ylabel="gain in nats a token (above 0: helps)")
    _finish(axes)
    return _saved(figure, path)


def gains_by(found: HeadDiagnostics, by: str) -> list[GainBin]:
    """The gains by `"place"` or by `"frequency"`, of the bins that have their share of the tokens."""
    if by not in AXIS_OF:
        raise ValueError(f"Gains are sorted by {' or by '.join(AXIS_OF)}, not by {by!r}.")
    bins = {"place": found.gain_by_place, "frequency": found.gain_by_frequency}[by]
    return [gain for gain in bins if gain.num_tokens >= LEAST_SHARE * found.gain.num_tokens]


def describe_heads(name: str, found: HeadDiagnostics) -> str:
    """What [`plot_heads`] shows of a model."""
    first = f"{name}: the next word is right {found.accuracies[0]:.1%} of the time, at perplexity {_number(found, 0)}"
    last = len(found.nlls) - 1
    if last == 0:
        return f"{first}."
    further = "one word" if last == 1 else f"{last} words"
    return f"{first}; head {last}, {further} further ahead, {found.accuracies[last]:.1%}, at {_number(found, last)}."


def describe_acceptance(name: str, found: HeadDiagnostics, generated: SpeculationStatistics | None = None) -> str:
    """What [`plot_acceptance`] shows of a model with heads."""
    shares = ", ".join(f"{share:.0%}" for share in found.acceptance)
    sentence = (
        f"{name}: on the text, {shares} of the drafts of {_heads(len(found.acceptance))} stand after drafts that "
        f"stood, which would make {found.tokens_per_pass:.2f} tokens a forward pass"
    )
    if generated is None:
        return f"{sentence}."
    return f"{sentence}; where the model goes on with its own words, {generated.tokens_per_forward:.2f} were measured."


def describe_gain(name: str, found: HeadDiagnostics, by: str) -> str:
    """What [`plot_gain`] shows of a model with heads."""
    if found.ensemble_lambda == 0:
        return f"{name}: λ is 0, so there is no ensemble and nothing to gain."
    everything = found.gain
    verb = "gains" if everything.mean >= 0 else "loses"
    sentence = f"{name}: with λ={found.ensemble_lambda:g} the ensemble {verb} {_nats(everything)} nats a token overall"
    clear = [gain for gain in gains_by(found, by) if abs(gain.mean) > CLEAR * gain.standard_error]
    parts = []
    for word, gains in (
        ("helps most", sorted((gain for gain in clear if gain.mean > 0), key=lambda gain: -gain.mean)),
        ("hurts most", sorted((gain for gain in clear if gain.mean < 0), key=lambda gain: gain.mean)),
    ):
        if gains:
            where = TOKENS_OF[by].format(gains[0].label)
            parts.append(f"{word} for tokens {where} ({_nats(gains[0])} nats, {gains[0].num_tokens:,} tokens)")
    if not parts:
        return f"{sentence}; no group differs from 0 by more than {CLEAR:g} standard errors."
    return f"{sentence}; it {' and '.join(parts)}."


def _plot_shares(axes: Axes, shares: Sequence[float], tried: Sequence[int], **style) -> None:
    errors = [
        math.sqrt(share * (1 - share) / count) if count else 0.0 for share, count in zip(shares, tried, strict=True)
    ]
    axes.errorbar(range(1, len(shares) + 1), shares, yerr=[CLEAR * error for error in errors], capsize=4, **style)


def _set_perplexity_axis(axes: Axes) -> None:
    """In equal ratios, with 200 for 2 x 10^2."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def _saved(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _short(count: int) -> str:
    """1,234 as 1.2k: there is little room under a bar."""
    return f"{count}" if count < 1000 else f"{count / 1000:.2g}k" if count < 10_000 else f"{count / 1000:,.0f}k"


def _number(found: HeadDiagnostics, depth: int) -> str:
    return f"{found.perplexities[depth]:,.1f}"


def _nats(gain: GainBin) -> str:
    return f"{abs(gain.mean):.3f} ± {gain.standard_error:.3f}"


def _heads(count: int) -> str:
    return "head 1" if count == 1 else f"heads 1 to {count}"
