"""The HTML page on finished runs: sections, tables, pictures."""

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import IO, Any

from matplotlib.figure import Figure

from ..data.errors import InputError, Unavailable
from ..decoding.obstacles import CannotDraft
from ..evaluation.gradient_diversity import GRADIENT_DIVERSITY, plot_gradient_diversity
from ..method.ensemble import describe_ensemble
from ..training.report import METRICS, RunResult, save_lambda_plot, save_training_plot
from ..training.trainer import loss_names
from .head_diagnostics import draft_statistics
from .head_figures import plot_acceptance, plot_gain, plot_heads
from .traced_html import as_page, as_table
from .traced_text import traced_text
from .trained_run import TrainedRun, load_run
from .wdr_map import wdr_map

REPORT = "analysis.html"
# The metrics and their titles.
TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "token_perplexity": "perplexity by token",
    "perplexity": "perplexity",
    "accuracy": "accuracy",
}
STYLE = """
:root { color-scheme: light dark; }
body { max-width: 68rem; margin: 0 auto; padding: 1rem; font: 16px/1.55 system-ui, sans-serif;
  color: light-dark(#1c1e21, #e6e7e9); background: light-dark(#fff, #16181c); }
section { overflow-x: auto; border-top: 1px solid #8886; }
table { border-collapse: collapse; margin: .75rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem 1.25rem .3rem 0; border-bottom: 1px solid #8886; text-align: left; }
img { max-width: 100%; background: #fff; margin: .5rem 0; }
"""


def write_report(
    runs: Sequence[str | Path],
    output: str | Path | None = None,
    split: str = "validation",
    max_tokens: int = 30_000,
    prompt: str | None = None,
    new_tokens: int = 64,
) -> Path:
    r"""
    Write a self-contained HTML page on finished runs and those of their `--compare`, and return its path.

    Args:
        runs (`Sequence[str | Path]`): The folders of the runs.
        output (`str` or `Path`, *optional*): The file to write; `analysis.html` in the first run's folder by default.
        split (`str`, *optional*, defaults to `"validation"`): The text to measure on, `"validation"` or `"test"`.
        max_tokens (`int`, *optional*, defaults to 30,000): Maximum number of tokens to measure on, the first ones.
        prompt (`str`, *optional*): The prompt of the text by source; by default, pieces of the split.
        new_tokens (`int`, *optional*, defaults to 64): The maximum number of tokens after each prompt.
    """
    folders = [
        folder
        for run in map(Path, runs)
        for folder in (run, *sorted(path.parent for path in run.glob(f"*/{METRICS}")))
    ]
    loaded = {}
    for folder in folders:
        run = load_run(folder, split, max_tokens)
        # Two runs may have models of one name.
        name = run.result.name if run.result.name not in loaded else f"{run.result.name}, {folder}"
        loaded[name] = replace(run, result=replace(run.result, name=name))
    drafting = {name: run for name, run in loaded.items() if run.drafts}
    if prompt is not None and not drafting:
        raise InputError("`--prompt` needs a model that drafts: leave it out.")
    sections = {
        "The model": partial(models, loaded),
        "Results": partial(results, loaded),
        "Training": partial(training, loaded),
        "Predictions of the heads": partial(heads, loaded, split),
        "Generated text by source": partial(generated_text, drafting, prompt, new_tokens),
        "Where the ensemble helps": partial(gains, drafting),
        "Map of the targets": partial(targets, loaded),
    }
    body = f"<p>Measured on the {split} set, up to {max_tokens:,} tokens.</p>\n"
    for title, make in sections.items():
        print(f"{title} ...", flush=True)
        try:
            content = "".join(make())
        except (Unavailable, CannotDraft) as error:
            content = f"<p>Not available: {escape(str(error))}</p>\n"
        body += f"<section>\n<h2>{title}</h2>\n{content}</section>\n" if content else ""
    path = folders[0] / REPORT if output is None else Path(output)
    path.write_text(as_page(" and ".join(loaded), body, STYLE), encoding="utf-8")
    return path


def models(runs: dict[str, TrainedRun]) -> Iterator[str]:
    rows = [["model", "class", "parameters", "in heads", "N", "ensemble"]]
    for name, run in runs.items():
        result = run.result
        sizes = [f"{result.num_parameters:,}", f"{result.head_parameters:,}", str(result.ngram_size)]
        ensemble = describe_ensemble(result.ensemble) if run.drafts else ""
        rows.append([name, type(run.model).__name__, *sizes, ensemble])
    yield table(rows)
    for name, run in runs.items():
        settings = table([["setting", "value"], *([key, str(value)] for key, value in run.result.settings.items())])
        yield f"<details><summary>Settings of {escape(name)}</summary>{settings}</details>\n"


def results(runs: dict[str, TrainedRun]) -> Iterator[str]:
    """Yield a table of the metrics by split and ensemble, and a plot over λ."""
    cells = {}
    for name, run in runs.items():
        for split, metrics in run.result.splits.items():
            # A masked language model has no ensemble.
            ensembles = metrics.get("ensembles", {"masked words": metrics})
            for metric, title in TITLES.items():
                row = {heading: f"{found[metric]:,.4g}" for heading, found in ensembles.items() if found.get(metric)}
                cells |= {(name, split, title): row} if row else {}
    headings = list(dict.fromkeys(heading for row in cells.values() for heading in row))
    body = [[*names, *(row.get(heading, "") for heading in headings)] for names, row in cells.items()]
    yield table([["model", "split", "metric", *headings], *body])
    metric = "bleu" if any(title == TITLES["bleu"] for *_, title in cells) else "token_perplexity"
    plotted = [replace(run.result, **over_lambda(run.result, metric)) for run in runs.values()]
    if all(result.over_lambda for result in plotted):
        yield picture(partial(save_lambda_plot, plotted), f"{TITLES[metric]} over λ")


def training(runs: dict[str, TrainedRun]) -> Iterator[str]:
    found = [run.result for run in runs.values()]
    yield picture(partial(save_training_plot, found), "Losses of each model and validation perplexity over the steps")
    logged = {r.name: r.history for r in found if any(GRADIENT_DIVERSITY in entry for entry in r.history)}
    if logged:
        yield picture(plot_gradient_diversity(logged), "Gradient diversity over the steps")


def heads(runs: dict[str, TrainedRun], split: str) -> Iterator[str]:
    """Yield perplexity, accuracy and acceptance rate by depth; the perplexity alone for masked language models."""
    rows = [["model", "depth", "perplexity", "accuracy", "acceptance rate", "tokens"]]
    for name, run in runs.items():
        if run.text is None:
            metrics = run.result.splits[split]
            for depth, loss in enumerate(loss_names(run.result.ngram_size, "masked_word")):
                label = f"{depth}-level WDR" if depth else "masked word"
                # A head without targets has no loss.
                perplexity = "" if metrics[loss] is None else f"{math.exp(metrics[loss]):,.1f}"
                rows.append([name, label, perplexity, "", "", f"{metrics['head_counts'][depth]:,}"])
            continue
        found = run.diagnostics
        for depth, count in enumerate(found.num_targets):
            label = f"head {depth}" if depth else "next token"
            accepted = f"{found.acceptance[depth - 1]:.1%}" if depth else ""
            figures = [f"{found.perplexities[depth]:,.1f}", f"{found.accuracies[depth]:.1%}", accepted, f"{count:,}"]
            rows.append([name, label, *figures])
    yield "<p>Head n predicts the token n positions after the next one. Acceptance: after accepted drafts.</p>\n"
    yield table(rows)
    by_name = {name: run.diagnostics for name, run in runs.items() if run.text is not None}
    if by_name:
        drafts = {name: draft_statistics(run.model, run.prompts) for name, run in runs.items() if run.drafts}
        yield picture(plot_heads(by_name), "Perplexity and accuracy by depth")
        yield picture(plot_acceptance(by_name, drafts), "Acceptance rate of each head's drafts")


def generated_text(runs: dict[str, TrainedRun], prompt: str | None, new_tokens: int) -> Iterator[str]:
    for name, run in runs.items():
        start = run.prompts[:3] if prompt is None else prompt
        found = traced_text(run.model, run.tokenizer, start, new_tokens, draft_threshold=0.0)
        yield f"<h3>{escape(name)}</h3>\n{found.fragment()}"


def gains(runs: dict[str, TrainedRun]) -> Iterator[str]:
    rows = [["model", "ensemble", "tokens", "gain", "standard error", "number"]]
    for name, run in runs.items():
        found = run.diagnostics
        groups = {"": [found.gain], "position ": found.gain_by_place, "count ": found.gain_by_frequency}
        for group, (label, number, mean, error) in ((group, gain) for group, bins in groups.items() for gain in bins):
            figures = [f"{mean:.4f}", f"{error:.4f}", f"{number:,}"]
            rows.append([name, describe_ensemble(found.ensemble), f"{group}{label}", *figures])
    if runs:
        by_name = {name: run.diagnostics for name, run in runs.items()}
        yield "<p>The NLL of a token without the ensemble minus that with it, with two standard errors.</p>\n"
        yield picture(plot_gain(by_name, "place"), "Gain by position in the sentence")
        yield picture(plot_gain(by_name, "frequency"), "Gain by count in the training text")
        yield f"<details><summary>Values</summary>{table(rows)}</details>\n"


def targets(runs: dict[str, TrainedRun]) -> Iterator[str]:
    run = next(iter(runs.values()))
    yield picture(wdr_map(run.model, run.documents, run.tokenizer).figure(), "Map of the targets by level")


def over_lambda(result: RunResult, metric: str) -> dict[str, Any]:
    """Return the fields of a result for its plot over λ: a metric by λ and with the fitted weights, by split."""
    splits = {split: metrics for split, metrics in result.splits.items() if metrics.get(metric)}
    return {
        "over_lambda": {
            split: {
                at: value for at, value in zip(metrics["lambda"], metrics[metric], strict=True) if value is not None
            }
            for split, metrics in splits.items()
        },
        "with_weights": {
            split: metrics["ensembles"]["fitted"][metric]
            for split, metrics in splits.items()
            if "fitted" in metrics["ensembles"]
        },
        "lambda_figure": TITLES[metric],
    }


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts as HTML; the first row is the header."""
    return as_table([[escape(cell) for cell in row] for row in rows])


def picture(drawing: Figure | Callable[[IO[bytes]], object], description: str) -> str:
    """Return the HTML of a plot, or of one that a function saves as PNG to a file."""
    file = io.BytesIO()
    (partial(drawing.savefig, dpi=120) if isinstance(drawing, Figure) else drawing)(file)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">\n'
