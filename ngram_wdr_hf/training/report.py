"""Results of a run: tables, `metrics.json`, plots, the model card, and comparisons."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from ..evaluation.ensemble_fit import EnsembleFit
from ..evaluation.gradient_diversity import GRADIENT_DIVERSITY, plot_gradient_diversity
from ..method.ensemble import Ensemble, describe_ensemble, is_lambda
from .options import ModelOptions
from .run_folder import METRICS, RunFolder
from .trainer import loss_names

# What the plot of the training shows of the evaluations, after the model's name; the last two only with heads.
VALIDATION_CURVES = {"eval_perplexity": "", "eval_best_perplexity": ", best λ", "eval_fitted_perplexity": ", fitted"}
# The fields of a `RunResult` that are in `metrics.json` as they are.
SAVED_FIELDS = ("num_parameters", "head_parameters", "splits", "settings", "history")


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
    # Examples of the model's output by label.
    samples: dict[str, str] = field(default_factory=dict)

    @property
    def lambda_splits(self) -> list[str]:
        """The splits with metrics over λ."""
        return [split for split, metrics in self.splits.items() if "lambda" in metrics]


def describe_model(model: PreTrainedModel) -> dict[str, Any]:
    """Return the fields of a [`RunResult`] that describe its model."""
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


def run_result(model: PreTrainedModel, folder: RunFolder, **fields: Any) -> RunResult:
    """Return the result of a run, given what its script measured."""
    return RunResult(**describe_model(model), settings=folder.settings, history=folder.history(), **fields)


def named_ensembles(own: Ensemble, best_lambda: float | None, fit: EnsembleFit | None) -> dict[str, Ensemble]:
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
    """Return a row's cells by heading: the number of units, and a metric by ensemble, the chosen one with `*`."""
    cells = {unit: f"{count:,}"}
    for heading, ensemble in named.items():
        note = f" ({ensemble:g})" if heading in ("best λ", "own λ") else ""
        is_chosen = ensemble == chosen and len(named) > 1 and (ensemble != 0 or heading == "without heads")
        cells[heading] = f"{figures[ensemble]:.2f}{note}{'*' * is_chosen}"
    return cells


def all_tables(results: Sequence[RunResult], layout: Callable[[Sequence[Sequence[str]]], str]) -> str:
    """Return a table per metric, with a row per model and split, and the fitted weights of each model."""
    parts = []
    for title in results[0].tables:
        cells = {(result.name, split): row for result in results for split, row in result.tables[title].items()}
        headings = list(dict.fromkeys(heading for row in cells.values() for heading in row))
        body = [[*names, *(row.get(heading, "") for heading in headings)] for names, row in cells.items()]
        table = layout([["model", "split", *headings], *body])
        parts.append(f"{title} (* saved with the model)\n\n{table}")
    fits = [
        f"{result.name}: fitted {describe_ensemble(result.fit.ensemble)} (next token, head 1, ...); temperature "
        f"alone {result.fit.temperature_weight:.2f}"
        for result in results
        if result.fit is not None
    ]
    return "\n\n".join([*parts, *(["\n".join(fits)] if fits else [])])


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text with aligned columns: the first two to the left, the others to the right."""
    columns = []
    for i, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if i < 2 else cell.rjust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, shown as they are, as Markdown; the first row is the heading."""
    head, *body = ([re.sub(r"([\\`*_\[\]<>&|~$#])", r"\\\1", " ".join(cell.split())) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


class Card(NamedTuple):
    """What the model cards of a script share. The code works without this package."""

    # Such as "A language model".
    kind: str
    pipeline_tag: str
    auto_class: str
    # What to do with `model` and `tokenizer`.
    code: str


def save(result: RunResult, model: PreTrainedModel, folder: RunFolder, card: Card, **usage: Any) -> None:
    """Print, save and push a run's results; of an evaluation, save only tables. `usage` is for the card's code."""
    training = folder.training
    if not training.should_save:
        return
    for label, text in result.samples.items():
        print(f"\n--- {result.name}, {label}\n{text}")
    print(f"\n{all_tables([result], as_text)}")
    path = folder.path
    path.mkdir(parents=True, exist_ok=True)
    names = ("README.md", METRICS) if training.do_train else ("evaluation.md", "evaluation.json")
    text = f"# {result.name}\n\n{all_tables([result], as_markdown)}\n"
    if training.do_train:
        model.config.save_pretrained(path)
        save_lambda_plot([result], path / "lambda_sweep.png")
        save_training_plot([result], path / "training.png")
        if any(GRADIENT_DIVERSITY in entry for entry in result.history):
            figure = plot_gradient_diversity({result.name: result.history})
            figure.savefig(path / "gradient_diversity.png", dpi=120)
        text = _model_card(result, card, folder.repository or str(path), usage)
    (path / names[0]).write_text(text, encoding="utf-8")
    has_lambda, fit = is_lambda(result.ensemble), result.fit
    metrics = {
        "model": result.name,
        "ensemble_lambda": result.ensemble if has_lambda else None,
        "ensemble_weights": None if has_lambda else result.ensemble,
        "fit": None if fit is None else asdict(fit),
        **{name: getattr(result, name) for name in SAVED_FIELDS},
    }
    # NaN and infinity become `null`.
    finite = json.loads(json.dumps(metrics), parse_constant=lambda _: None)
    (path / names[1]).write_text(json.dumps(finite, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nSaved in {path}: {' and '.join(names)}.")
    folder.push()


def compare(
    main: Callable[..., RunResult], arguments: Sequence[str], result: RunResult, model: ModelOptions, folder: RunFolder
) -> None:
    """Run `main` with the same command line for each other kind of model, and print and plot all results together."""
    results, path = [result], folder.path
    for kind, options in model.compared_kinds.items():
        if kind != model.kind:
            words = [*options.split(), "--compare", "false", "--output_dir", str(path / kind)]
            results.append(main([*arguments, *words]))
    if folder.training.should_save:
        print(f"\n{all_tables(results, as_text)}")
        save_lambda_plot(results, path / "comparison.png")
        save_training_plot(results, path / "comparison_training.png")


def _model_card(result: RunResult, card: Card, name: str, usage: Mapping[str, Any]) -> str:
    """Return the model card: use, results, plots, and samples as indented blocks, which no text can end."""
    ensemble = how_without = plot = ""
    if result.ensemble is not None:
        ensemble = f"; the ensemble has {describe_ensemble(result.ensemble)}"
        how_without = " Call `generate(..., ensemble_lambda=0.0)` to generate without the ensemble."
    if result.lambda_splits:
        plot = "![Results over λ](lambda_sweep.png)\n"
    samples = "\n\n".join(f"With {label}:\n\n{indent(text, '    ')}" for label, text in result.samples.items())
    return f"""---
library_name: transformers
pipeline_tag: {card.pipeline_tag}
tags:
- ngram-wdr-hf
- n-gram-prediction
---

# {result.name}

{card.kind} with N-gram heads, after [*N-gram Prediction and Word Difference Representations for Language \
Modeling*](https://hf.co/papers/2409.03295), trained with `ngram_wdr_hf` and the settings in [run.yaml](run.yaml). \
{result.num_parameters:,} parameters, {result.head_parameters:,} of them in the heads{ensemble}.

## Use

```python
from transformers import {card.auto_class}, AutoTokenizer

model = {card.auto_class}.from_pretrained({name!r}, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained({name!r}, trust_remote_code=True)
{card.code.format(**usage)}
```

With `ngram_wdr_hf` installed and imported, `trust_remote_code` is not needed.{how_without}

## Results

{all_tables([result], as_markdown)}

{plot}![Training](training.png)

## Sample

{samples}
"""


@contextmanager
def _panels(count: int, path: Path) -> Iterator[Sequence[Any]]:
    """Yield the axes of a row of panels, and then save the figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * count, 4), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False)[0]
    yield panels
    for axes in panels:
        axes.grid(alpha=0.3, which="both")
        if axes.has_data():
            axes.legend()
    figure.savefig(path, dpi=120)


def save_lambda_plot(results: Sequence[RunResult], path: Path) -> None:
    """Plot BLEU or perplexity over λ, a panel per split: a star at the saved λ, a dotted line for fitted weights."""
    splits = results[0].lambda_splits
    if not splits:
        return
    metric = "bleu" if "bleu" in results[0].splits[splits[0]] else "token_perplexity"
    with _panels(len(splits), path) as panels:
        for axes, split in zip(panels, splits, strict=True):
            axes.set(title=split, xlabel="λ", ylabel=metric.replace("_", " "))
            for i, result in enumerate(results):
                metrics, color = result.splits.get(split, {}), f"C{i}"
                if metric not in metrics:
                    continue
                by_lambda = dict(zip(metrics["lambda"], metrics[metric], strict=True))
                if not result.head_parameters:
                    axes.axhline(by_lambda[0.0], color=color, linestyle="--", label=result.name)
                    continue
                axes.plot(list(by_lambda), list(by_lambda.values()), marker="o", color=color, label=result.name)
                if "fitted" in metrics["ensembles"]:
                    fitted, label = metrics["ensembles"]["fitted"][metric], f"{result.name}, fitted weights"
                    axes.axhline(fitted, color=color, linestyle=":", label=label)
                if result.ensemble in by_lambda:
                    axes.plot(result.ensemble, by_lambda[result.ensemble], marker="*", markersize=16, color=color)


def save_training_plot(results: Sequence[RunResult], path: Path) -> None:
    """Plot the training loss of each depth, a panel per model, and the validation perplexity of all models."""
    with _panels(len(results) + 1, path) as (*by_model, last):
        for i, (axes, result) in enumerate(zip(by_model, results, strict=True)):
            axes.set(title=f"{result.name}: training loss", xlabel="step", ylabel="NLL per token")
            for name in ("masked_word_loss", *loss_names(result.ngram_size)):
                _plot(axes, result, name, name.removesuffix("_loss").replace("_", " "))
            for name, note in VALIDATION_CURVES.items():
                if result.head_parameters or not note:
                    _plot(last, result, name, result.name + note, color=f"C{i}", linestyle=":" if note else "-")
        last.set(title="validation", xlabel="step", ylabel="perplexity by token", yscale="log")
        last.yaxis.set_major_formatter("{x:g}")
        last.yaxis.set_minor_formatter("{x:g}")


def _plot(axes: Any, result: RunResult, name: str, label: str, **style: Any) -> None:
    """Plot a metric of the training log over the steps."""
    points = [(entry["step"], entry[name]) for entry in result.history if math.isfinite(entry.get(name, math.nan))]
    if points:
        axes.plot(*zip(*points, strict=True), marker=".", markersize=3, label=label, **style)
