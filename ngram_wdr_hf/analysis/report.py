"""The HTML page on finished runs: sections, tables, pictures."""

import base64
import io
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import IO, Any

from ..data.errors import Unavailable
from ..decoding.draft_limits import CannotDraft
from ..method.ensemble import describe_ensemble
from ..training.report import save_lambda_plot, save_training_plot
from ..training.run_folder import METRICS
from ..training.trainer import loss_names
from .head_figures import plot_acceptance, plot_gain, plot_heads
from .traced_text import as_page, as_table, traced_text
from .trained_run import TrainedRun, load_run
from .wdr_map import wdr_map

TABLE_METRICS = ("bleu", "chrf", "token_perplexity", "perplexity", "accuracy")


def write_report(
    runs: Sequence[str | Path],
    output: str | Path | None = None,
    split: str = "validation",
    max_tokens: int = 30_000,
    prompt: str | None = None,
) -> Path:
    """Write a self-contained HTML page on finished runs and those of their `--compare`, and return its path."""
    folders = []
    for run in map(Path, runs):
        folders += [run, *sorted(path.parent for path in run.glob(f"*/{METRICS}"))]
    loaded: dict[str, TrainedRun] = {}
    for folder in folders:
        run = load_run(folder, split, max_tokens)
        if run.result.name in loaded:
            run.result.name += f", {folder}"
        loaded[run.result.name] = run
    drafting = {name: run for name, run in loaded.items() if run.drafts}
    sections = {
        "Results": results(loaded),
        "Training": training(loaded),
        "Predictions of the heads": heads(loaded, split),
        "Generated text by source": generated_text(drafting, prompt),
        "Where the ensemble helps": gains(drafting),
        "Map of the targets": targets(loaded),
    }
    body = f"<p>Measured on the {split} set, up to {max_tokens:,} tokens.</p>\n"
    for title, parts in sections.items():
        print(f"{title} ...", flush=True)
        try:
            content = "".join(parts)
        except (Unavailable, CannotDraft) as error:
            content = f"<p>Not available: {escape(str(error))}</p>\n"
        body += f"<section>\n<h2>{title}</h2>\n{content}</section>\n" if content else ""
    path = folders[0] / "analysis.html" if output is None else Path(output)
    path.write_text(as_page(" and ".join(loaded), body), encoding="utf-8")
    return path


def results(runs: dict[str, TrainedRun]) -> Iterator[str]:
    """Yield tables of the models, their settings and metrics by split and ensemble, and a plot over λ."""
    found = [run.result for run in runs.values()]
    sizes = [[r.name, r.ngram_size, f"{r.num_parameters:,}", f"{r.head_parameters:,}"] for r in found]
    yield table([["model", "N", "parameters", "in heads"], *sizes])
    names = dict.fromkeys(name for result in found for name in result.settings)
    settings = [[name, *(result.settings.get(name, "") for result in found)] for name in names]
    yield f"<details><summary>Settings</summary>{table([['setting', *runs], *settings])}</details>\n"
    cells = {}
    for result in found:
        for split, metrics in result.splits.items():
            # A masked language model has no ensemble.
            ensembles = metrics.get("ensembles", {"masked words": metrics})
            for metric in TABLE_METRICS:
                row = {heading: values[metric] for heading, values in ensembles.items() if metric in values}
                if metric == "token_perplexity":
                    row = row or metrics.get("ensemble_perplexity")
                cells |= {(result.name, split, metric.replace("_", " ")): row} if row else {}
    headings = dict.fromkeys(heading for row in cells.values() for heading in row)
    body = [[*names, *(row.get(heading, "") for heading in headings)] for names, row in cells.items()]
    yield table([["model", "split", "metric", *headings], *body])
    if found[0].lambda_splits:
        yield picture(partial(save_lambda_plot, found), "Results over λ")


def training(runs: dict[str, TrainedRun]) -> Iterator[str]:
    found = [run.result for run in runs.values()]
    yield picture(partial(save_training_plot, found), "Training losses and validation perplexity over the steps")


def heads(runs: dict[str, TrainedRun], split: str) -> Iterator[str]:
    """Yield perplexity, accuracy and acceptance rate by depth; the perplexity alone for masked language models."""
    by_name = {name: run.diagnostics for name, run in runs.items() if run.text is not None}
    rows = [["model", "depth", "perplexity", "tokens", "accuracy", "acceptance rate"]]
    for name, found in by_name.items():
        columns = (found.perplexities, found.num_targets, found.accuracies, ["", *found.acceptance])
        rows += [[name, depth, *figures] for depth, figures in enumerate(zip(*columns, strict=True))]
    for result in (run.result for run in runs.values() if run.text is None):
        metrics = result.splits[split]
        for depth, loss in enumerate(loss_names(result.ngram_size, "masked_word")):
            # A head without targets has no loss.
            perplexity = "" if metrics[loss] is None else math.exp(metrics[loss])
            rows.append([result.name, depth, perplexity, metrics["head_counts"][depth], "", ""])
    yield "<p>Depth 0 is the next token or the masked word, depth n the prediction of head n.</p>\n"
    yield table(rows)
    if by_name:
        yield picture(plot_heads(by_name).savefig, "Perplexity and accuracy by depth")
        yield picture(plot_acceptance(by_name).savefig, "Acceptance rate of each head's drafts")


def generated_text(runs: dict[str, TrainedRun], prompt: str | None) -> Iterator[str]:
    for name, run in runs.items():
        found = traced_text(run.model, run.tokenizer, prompt or run.prompts, draft_threshold=0.0)
        yield f"<h3>{escape(name)}</h3>\n{found.fragment()}"


def gains(runs: dict[str, TrainedRun]) -> Iterator[str]:
    """Yield the ensemble's gain: the NLL of a token without the ensemble minus that with it."""
    by_name = {name: run.diagnostics for name, run in runs.items()}
    if runs:
        rows = [[name, describe_ensemble(found.ensemble), *found.gain[2:]] for name, found in by_name.items()]
        yield table([["model", "ensemble", "gain in nats per token", "standard error"], *rows])
        yield picture(plot_gain(by_name, "place").savefig, "Gain by position in the sentence")
        yield picture(plot_gain(by_name, "frequency").savefig, "Gain by count in the training text")


def targets(runs: dict[str, TrainedRun]) -> Iterator[str]:
    run = next(iter(runs.values()))
    yield picture(wdr_map(run.model, run.documents, run.tokenizer).figure().savefig, "Map of the targets by level")


def table(rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML; the first row is the header."""
    return as_table(
        [[escape(f"{cell:,.4g}" if isinstance(cell, float) else str(cell)) for cell in row] for row in rows]
    )


def picture(save: Callable[[IO[bytes]], object], description: str) -> str:
    """Return the HTML of a plot that a function saves to a file."""
    file = io.BytesIO()
    save(file)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">\n'
