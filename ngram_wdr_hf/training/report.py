"""What a run leaves to look at: a table, plots, a model card, the figures as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .evaluation import Scores
from .trainer import loss_names


@dataclass
class RunResult:
    """
    A finished run.

    Args:
        name (`str`): Which model, in a word or two.
        settings (`dict[str, Any]`): How it was made.
        num_parameters (`int`): All weights, the heads' included.
        head_parameters (`int`): The heads' weights.
        scores (`dict[str, Scores]`): By split.
        ensemble_lambda (`float`): The λ saved with the model.
        history (`list[dict[str, float]]`): Trainer's log; empty without training.
        samples (`dict[str, str]`): Generated text by λ, as a label.
    """

    name: str
    settings: dict[str, Any]
    num_parameters: int
    head_parameters: int
    scores: dict[str, Scores]
    ensemble_lambda: float
    history: list[dict[str, float]]
    samples: dict[str, str]


def save_metrics(result: RunResult, path: Path) -> None:
    splits = {
        split: {
            "lambda": scores.lambdas,
            "perplexity": scores.perplexities("word"),
            "token_perplexity": scores.perplexities("token"),
            **dict(zip(loss_names(len(scores.head_nlls)), scores.head_nlls, strict=True)),
            "num_words": scores.num_words,
            "num_tokens": scores.num_tokens,
        }
        for split, scores in result.scores.items()
    }
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


def perplexity_table(results: Sequence[RunResult], unit: str) -> list[list[str]]:
    """Perplexity by `"word"` or `"token"` for every model, split and λ; a star marks the λ that was chosen."""
    lambdas = sorted({value for result in results for scores in result.scores.values() for value in scores.lambdas})
    rows = [["model", "split", f"{unit}s", *(f"λ={value:g}" for value in lambdas)]]
    for result in results:
        for split, scores in result.scores.items():
            by_lambda = dict(zip(scores.lambdas, scores.perplexities(unit), strict=True))
            cells = []
            for value in lambdas:
                mark = "*" if value == result.ensemble_lambda and result.head_parameters else ""
                # Without heads there is nothing to mix: one figure says it all.
                is_shown = value in by_lambda and (result.head_parameters or value == lambdas[0])
                cells.append(f"{by_lambda[value]:.2f}{mark}" if is_shown else "")
            rows.append([result.name, split, f"{scores.count(unit):,}", *cells])
    return rows


def units_of(results: Sequence[RunResult]) -> list[str]:
    """By word, and if tokens are not words also by token."""
    all_scores = [scores for result in results for scores in result.scores.values()]
    is_same = all(scores.num_words == scores.num_tokens for scores in all_scores)
    return ["word"] if is_same else ["word", "token"]


def print_tables(results: Sequence[RunResult]) -> None:
    for unit in units_of(results):
        print(f"\nPerplexity by {unit} (* the λ chosen on validation)\n\n{as_text(perplexity_table(results, unit))}")


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


def save_lambda_plot(results: Sequence[RunResult], path: Path) -> None:
    """Perplexity over λ for every split, the chosen λ marked."""
    splits = list(dict.fromkeys(split for result in results for split in result.scores))
    figure = Figure(figsize=(5 * len(splits), 4), layout="constrained")
    for axes, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
        for i, result in enumerate(results):
            scores, color = result.scores[split], f"C{i}"
            if not result.head_parameters:
                axes.axhline(scores.perplexities("word")[0], color=color, linestyle="--", label=result.name)
                continue
            axes.plot(scores.lambdas, scores.perplexities("word"), marker="o", color=color, label=result.name)
            chosen = scores.at(result.ensemble_lambda)
            axes.plot(
                result.ensemble_lambda, scores.perplexities("word")[chosen], marker="*", markersize=16, color=color
            )
        axes.set(title=split, xlabel="λ", ylabel="perplexity by word")
        axes.grid(alpha=0.3)
        axes.legend(title="★ chosen on validation" if any(r.head_parameters for r in results) else None)
    figure.savefig(path, dpi=120)


def save_training_plot(results: Sequence[RunResult], path: Path) -> None:
    """The losses of the next word and of every head, and the validation perplexity, over the steps."""
    figure = Figure(figsize=(5 * len(results) + 5, 4), layout="constrained")
    *by_model, last = figure.subplots(1, len(results) + 1)
    for axes, result in zip(by_model, results, strict=True):
        for name in loss_names(len(next(iter(result.scores.values())).head_nlls)):
            _plot(axes, result.history, name, label=name.removesuffix("_loss").replace("_", " "))
        axes.set(title=f"{result.name}: training loss", xlabel="step", ylabel="NLL by token")
    for i, result in enumerate(results):
        style = {"color": f"C{i}", "marker": "."}
        label = f"{result.name}, λ=0" if result.head_parameters else result.name
        _plot(last, result.history, "eval_perplexity", label=label, **style)
        if result.head_parameters:
            _plot(last, result.history, "eval_best_perplexity", label="the same, best λ", linestyle=":", **style)
    last.set(title="validation", xlabel="step", ylabel="perplexity by token", yscale="log")
    # 200, not 2 x 10^2.
    last.yaxis.set_major_formatter("{x:g}")
    last.yaxis.set_minor_formatter("{x:g}")
    for axes in (*by_model, last):
        axes.grid(alpha=0.3, which="both")
        # A run may be too short for a single log or evaluation.
        if axes.has_data():
            axes.legend()
    figure.savefig(path, dpi=120)


def _plot(axes: Axes, history: list[dict[str, float]], name: str, **style) -> None:
    points = [(entry["step"], entry[name]) for entry in history if name in entry and math.isfinite(entry[name])]
    if points:
        axes.plot(*zip(*points, strict=True), **style)


def save_model_card(result: RunResult, path: Path) -> None:
    tables = "\n\n".join(
        f"Perplexity by {unit}:\n\n{as_markdown(perplexity_table([result], unit))}" for unit in units_of([result])
    )
    samples = "\n\n".join(f"λ = {label}:\n\n```text\n{text}\n```" for label, text in result.samples.items())
    settings = "\n".join(f"- `{name}`: {value}" for name, value in result.settings.items() if value is not None)
    path.write_text(
        f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- ngram-wdr-hf
- n-gram-prediction
---

# {result.name}

A language model with N-gram heads, after [*N-gram Prediction and Word Difference Representations for Language \
Modeling*](https://hf.co/papers/2409.03295), trained with `ngram_wdr_hf`. {result.num_parameters:,} parameters, \
{result.head_parameters:,} of them in the heads; the ensemble's λ is {result.ensemble_lambda:g}.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("THIS_FOLDER", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
```

With `ngram_wdr_hf` installed and imported, `trust_remote_code` is not needed. `generate(..., ensemble_lambda=0.0)` \
is the model without the ensemble.

## Results

{tables}

★: the λ that is best on validation, saved with the model.

![Perplexity over λ](lambda_sweep.png)
![Training](training.png)

## Sample

{samples}

## Settings

{settings}
""",
        encoding="utf-8",
    )
