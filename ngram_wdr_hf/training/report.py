"""Results of a run: tables, `metrics.json`, plots and the model card."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from ..evaluation.ensemble_fit import EnsembleFit
from ..evaluation.gradient_diversity import GRADIENT_DIVERSITY, plot_gradient_diversity
from ..evaluation.scores import Scores
from ..method.ensemble import Ensemble, describe_ensemble, is_lambda
from .trainer import loss_names

METRICS = "metrics.json"
# Marks the chosen ensemble; an asterisk has a meaning in Markdown.
STAR = " ★"


@dataclass
class RunResult:
    """A finished run. A masked language model has no ensemble."""

    # Such as "wdr N=4".
    name: str
    ngram_size: int
    num_parameters: int
    head_parameters: int
    # The options that identify the run, and Trainer's log; empty without training.
    settings: dict[str, Any]
    history: list[dict[str, float]]
    # The metrics by split and name, for `metrics.json`, and the cells of tables by title, split and heading.
    splits: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, dict[str, str]]]
    # The saved ensemble, and the weights fitted on the validation set, if any.
    ensemble: Ensemble | None = None
    fit: EnsembleFit | None = None
    # The metric to plot over λ, by split, the same with weights, and its name.
    over_lambda: dict[str, dict[float, float]] = field(default_factory=dict)
    with_weights: dict[str, float] = field(default_factory=dict)
    lambda_figure: str = ""
    # Examples of the model's output by label.
    samples: dict[str, str] = field(default_factory=dict)


def describe_model(model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of a `RunResult` that describe its model."""
    config, has_heads = model.config, len(model.ngram_heads) > 0
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


def named_ensembles(
    own: Ensemble, best_lambda: float | None = None, fit: EnsembleFit | None = None
) -> dict[str, Ensemble]:
    """Return the ensembles of a table by heading, given the model's own, the best λ on validation, and the fit."""
    named: dict[str, Ensemble] = {"without heads": 0.0}
    if fit is not None:
        named["temperature"] = fit.temperature
    if best_lambda is not None:
        named["best λ"] = best_lambda
    if fit is not None:
        named["fitted"] = fit.ensemble
    elif own not in (0.0, best_lambda):
        named["own λ" if is_lambda(own) else "own weights"] = own
    return named


def ensemble_cells(
    unit: str, count: int, named: Mapping[str, Ensemble], figures: Mapping[Ensemble, float], chosen: Ensemble
) -> dict[str, str]:
    """
    Return the cells of a row by heading: the number of units, such as tokens, and a metric for each of the ensembles
    in `named`, with an asterisk at the `chosen` one.
    """
    cells = {unit: f"{count:,}"}
    for heading, ensemble in named.items():
        if ensemble in figures:
            note = f" ({ensemble:g})" if heading in ("best λ", "own λ") else ""
            is_chosen = ensemble == chosen and len(named) > 1 and (ensemble != 0 or heading == "without heads")
            cells[heading] = f"{figures[ensemble]:.2f}{note}{'*' * is_chosen}"
    return cells


def score_metrics(scores: Scores, named: Mapping[str, Ensemble]) -> dict[str, Any]:
    """Return the perplexities of a split for `metrics.json`: by λ, and for the ensembles in `named`."""
    by_ensemble = {
        heading: {"perplexity": scores.perplexity(ensemble, "word"), "token_perplexity": scores.perplexity(ensemble)}
        for heading, ensemble in named.items()
        if ensemble in scores.ensembles
    }
    return {
        "lambda": [*scores.by_lambda()],
        "perplexity": [*scores.by_lambda("word").values()],
        "token_perplexity": [*scores.by_lambda("token").values()],
        "ensembles": by_ensemble,
        **dict(zip(loss_names(len(scores.head_nlls)), scores.head_nlls, strict=True)),
        "num_words": scores.num_words,
        "num_tokens": scores.num_tokens,
    }


def print_tables(results: Sequence[RunResult]) -> None:
    """Print one table per metric, with all models, and the fitted weights."""
    for title in results[0].tables:
        print(f"\n{title} (* saved with the model)\n\n{as_text(table_rows(results, title))}")
    if fits := describe_fits(results):
        print(f"\n{fits}")


def print_samples(result: RunResult) -> None:
    """Print examples of the model's output."""
    for label, text in result.samples.items():
        print(f"\n--- {result.name}, {label}\n{text}")


def describe_fits(results: Sequence[RunResult]) -> str:
    """Return a line per model with fitted weights: the weights, and the temperature alone."""
    return "\n".join(
        f"{result.name}: fitted {describe_ensemble(result.fit.ensemble)} (next token, head 1, ...); temperature "
        f"alone {result.fit.temperature_weight:.2f}"
        for result in results
        if result.fit is not None
    )


class Card(NamedTuple):
    """
    What the model cards of a script share: the kind of model, such as "A language model", its tag on the Hub, and
    example code with the fields of `usage`, which works without this package.
    """

    kind: str
    pipeline_tag: str
    code: str


def save_results(result: RunResult, folder: Path, card: Card, usage: Mapping[str, Any]) -> None:
    """Write `metrics.json`, the plots and the model card of a run. `usage` has the values for the card's code."""
    save_lambda_plot([result], folder / "lambda_sweep.png")
    save_training_plot([result], folder / "training.png")
    if any(GRADIENT_DIVERSITY in entry for entry in result.history):
        figure = plot_gradient_diversity({result.name: result.history})
        figure.savefig(folder / "gradient_diversity.png", dpi=120)
    (folder / "README.md").write_text(_model_card(result, card, usage), encoding="utf-8")
    save_metrics(result, folder / METRICS)
    print(f"\nSaved in {folder}: the model, README.md, {METRICS} and the plots.")


def save_evaluation(result: RunResult, folder: Path) -> None:
    """Write the results of an evaluation without training: `evaluation.md` and `evaluation.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evaluation.md").write_text(f"# {result.name}\n\n{markdown_tables(result)}\n", encoding="utf-8")
    save_metrics(result, folder / "evaluation.json")
    print(f"\nSaved in {folder}: evaluation.md and evaluation.json.")


def save_metrics(result: RunResult, path: Path) -> None:
    """Write the metrics of a run as JSON, with model, settings and training log. NaN and infinity become `null`."""
    has_lambda = is_lambda(result.ensemble)
    metrics = {
        "model": result.name,
        "ensemble_lambda": result.ensemble if has_lambda else None,
        "ensemble_weights": None if has_lambda else result.ensemble,
        "fit": None if result.fit is None else asdict(result.fit),
        "num_parameters": result.num_parameters,
        "head_parameters": result.head_parameters,
        "splits": result.splits,
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


def table_rows(results: Sequence[RunResult], title: str) -> list[list[str]]:
    """Return a table as rows of cells, the headings first: a row per model and split."""
    cells = {(result.name, split): row for result in results for split, row in result.tables[title].items()}
    headings = list(dict.fromkeys(heading for row in cells.values() for heading in row))
    body = [[*names, *(row.get(heading, "") for heading in headings)] for names, row in cells.items()]
    return [["model", "split", *headings], *body]


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text with aligned columns: the first two to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts as Markdown; the first row is the heading."""
    head, *body = ([escape(cell.replace("*", STAR)) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def markdown_tables(result: RunResult) -> str:
    """Return the tables of a run as Markdown, and its fitted weights."""
    parts = [f"{title}:\n\n{as_markdown(table_rows([result], title))}" for title in result.tables]
    return "\n\n".join([*parts, describe_fits([result])]).rstrip()


def escape(text: str) -> str:
    """Return a text as one line of Markdown that is shown as it is, in a table as well."""
    return re.sub(r"([\\`*_\[\]<>&|~$#])", r"\\\1", " ".join(text.split()))


def code_block(text: str, language: str = "text") -> str:
    """Return a fenced block. Its fence is longer than any backticks in the text, which would otherwise end it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _model_card(result: RunResult, card: Card, usage: Mapping[str, Any]) -> str:
    """Return the model card: use, results, plots, samples and settings."""
    ensemble = how_without = plot = ""
    if result.ensemble is not None:
        ensemble = f"; the ensemble has {describe_ensemble(result.ensemble)}"
        how_without = " Call `generate(..., ensemble_lambda=0.0)` to generate without the ensemble."
    if result.over_lambda:
        plot = "★: saved with the model.\n\n![Results over λ](lambda_sweep.png)\n"
    samples = "\n\n".join(f"With {label}:\n\n{code_block(text)}" for label, text in result.samples.items())
    settings = "\n".join(f"- `{name}`: {escape(str(value))}" for name, value in result.settings.items())
    return f"""---
library_name: transformers
pipeline_tag: {card.pipeline_tag}
tags:
- ngram-wdr-hf
- n-gram-prediction
---

# {result.name}

{card.kind} with N-gram heads, after [*N-gram Prediction and Word Difference Representations for Language \
Modeling*](https://hf.co/papers/2409.03295), trained with `ngram_wdr_hf`. {result.num_parameters:,} parameters, \
{result.head_parameters:,} of them in the heads{ensemble}.

## Use

{code_block(card.code.format(**usage), "python")}

With `ngram_wdr_hf` installed and imported, `trust_remote_code` is not needed.{how_without}

## Results

{markdown_tables(result)}

{plot}![Training](training.png)

## Sample

{samples}

## Settings

{settings}
"""


def save_lambda_plot(results: Sequence[RunResult], path: Path) -> None:
    """
    Plot a metric over λ: a panel per split, a curve per model with a star at its saved λ, a dashed line without heads,
    and a dotted line for weights. Without a metric over λ, no plot.
    """
    from matplotlib.figure import Figure

    splits = list(results[0].over_lambda)
    if not splits:
        return
    figure = Figure(figsize=(5 * len(splits), 4), layout="constrained")
    for axes, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
        for i, result in enumerate(results):
            by_lambda, color = result.over_lambda.get(split, {}), f"C{i}"
            if not result.head_parameters:
                axes.axhline(by_lambda[0.0], color=color, linestyle="--", label=result.name)
                continue
            axes.plot(list(by_lambda), list(by_lambda.values()), marker="o", color=color, label=result.name)
            if split in result.with_weights:
                label = f"{result.name}, fitted weights"
                axes.axhline(result.with_weights[split], color=color, linestyle=":", label=label)
            if result.ensemble in by_lambda:
                axes.plot(result.ensemble, by_lambda[result.ensemble], marker="*", markersize=16, color=color)
        axes.set(title=split, xlabel="λ", ylabel=results[0].lambda_figure)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def save_training_plot(results: Sequence[RunResult], path: Path) -> None:
    """Plot the training loss of each depth, a panel per model, and the validation perplexity of all models."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * (len(results) + 1), 4), layout="constrained")
    *by_model, last = figure.subplots(1, len(results) + 1)
    for i, (axes, result) in enumerate(zip(by_model, results, strict=True)):
        for name in ("masked_word_loss", *loss_names(result.ngram_size)):
            _plot(axes, result.history, name, name.removesuffix("_loss").replace("_", " "))
        axes.set(title=f"{result.name}: training loss", xlabel="step", ylabel="NLL per token")
        _plot(last, result.history, "eval_perplexity", result.name, color=f"C{i}", marker=".")
        for kind, name in (("best λ", "eval_best_perplexity"), ("fitted weights", "eval_fitted_perplexity")):
            if result.head_parameters and result.ensemble is not None:
                label = f"{result.name}, {kind}"
                _plot(last, result.history, name, label, color=f"C{i}", marker=".", linestyle=":")
    last.set(title="validation", xlabel="step", ylabel="perplexity by token", yscale="log")
    last.yaxis.set_major_formatter("{x:g}")
    last.yaxis.set_minor_formatter("{x:g}")
    for axes in (*by_model, last):
        axes.grid(alpha=0.3, which="both")
        if axes.has_data():
            axes.legend()
    figure.savefig(path, dpi=120)


def _plot(axes: Any, history: Sequence[Mapping[str, float]], name: str, label: str, **style: Any) -> None:
    points = [(entry["step"], entry[name]) for entry in history if math.isfinite(entry.get(name, math.nan))]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **{"marker": "." if len(points) == 1 else None, **style})
