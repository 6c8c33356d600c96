"""The HTML report on a trained run."""

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import IO

from matplotlib.figure import Figure

from ..backbones.registry import is_masked
from ..data.errors import InputError, Unavailable
from ..evaluation.gradient_diversity import GRADIENT_DIVERSITY, gradient_diversity, plot_gradient_diversity
from ..method.ensemble import describe_ensemble, ensemble_arguments
from ..training.common.checks import check_output_file
from ..training.common.plots import plot_over_lambda, save_training_plot
from ..training.trainer import loss_names
from .diagnostics import HeadDiagnostics, draft_statistics, find_sentence_ends, head_diagnostics
from .diagnostics_figures import plot_acceptance, plot_gain, plot_heads
from .traced_text import DEFAULT_NEW_TOKENS, read_prompts, traced_text
from .trained_run import NEW_TOKENS, RunText, TrainedRun, find_runs, load_run, load_text
from .wdr_map import wdr_map

REPORT = "analysis.html"
DEFAULT_TOKENS = 30_000
# The number of prompts of the text by source.
NUM_TRACED = 3
# The metrics and their titles; the plot over λ shows the first one that the run has.
METRICS = {
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
PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
<h1>{title}</h1>
<p>{subtitle}</p>
{sections}</html>
"""


@dataclass
class Analysis:
    """The runs of a report (the run, then those it is compared with), the text to measure on, and the options."""

    runs: list[TrainedRun]
    split: str
    text: RunText
    prompt: str | None
    new_tokens: int

    @property
    def drafting(self) -> list[TrainedRun]:
        """The runs with heads that draft."""
        return [run for run in self.runs if run.has_ensemble]

    @cached_property
    def diagnostics(self) -> dict[str, HeadDiagnostics]:
        """The diagnostics of all models by name, computed on first use; not for masked language models."""
        options = {
            "sentence_ends": find_sentence_ends(self.runs[0].tokenizer),
            "token_counts": self.text.token_counts,
        }
        return {
            run.name: head_diagnostics(
                run.model, self.text.predicted, **options, **ensemble_arguments(run.tried_ensemble())
            )
            for run in self.runs
        }


def models(analysis: Analysis) -> list[str]:
    rows = [["model", "class", "parameters", "in heads", "N", "ensemble"]]
    for run in analysis.runs:
        sizes = [f"{run.result.num_parameters:,}", f"{run.result.head_parameters:,}", str(run.result.ngram_size)]
        ensemble = describe_ensemble(run.result.ensemble) if run.has_ensemble else ""
        rows.append([run.name, type(run.model).__name__, *sizes, ensemble])
    settings = [["setting", "value"], *([name, str(value)] for name, value in analysis.runs[0].settings.items())]
    return [table(rows), f"<details><summary>Settings</summary>{table(settings)}</details>"]


def results(analysis: Analysis) -> list[str]:
    """Return a table of the metrics by split, λ and kind of ensemble, and a plot over λ."""
    runs, cells = analysis.runs, {}
    for run in runs:
        for split in run.splits:
            for metric, label in METRICS.items():
                by_lambda = {f"λ={value:g}": figure for value, figure in run.by_lambda(split, metric).items()}
                if by_lambda:
                    cells[run.name, split, label] = by_lambda | run.by_ensemble(split, metric)
    columns = sorted({name for row in cells.values() for name in row}, key=lambda name: (name[0] != "λ", name))
    rows = [
        [*names, *(f"{row[name]:,.4g}" if name in row else "" for name in columns)] for names, row in cells.items()
    ]
    parts = [table([["model", "split", "metric", *columns], *rows])]
    if not analysis.drafting:
        return parts
    first = analysis.drafting[0]
    metric = next(metric for metric in METRICS if any(first.by_lambda(split, metric) for split in first.splits))
    # A test set may have been translated with only two values of λ.
    most = max(len(first.by_lambda(split, metric)) for split in first.splits)
    splits = [split for split in first.splits if len(first.by_lambda(split, metric)) == most]
    by_name = {run.name: run for run in runs}
    draw = partial(
        plot_over_lambda,
        [run.result for run in runs],
        splits,
        lambda result, split: by_name[result.name].by_lambda(split, metric),
        METRICS[metric],
        weighted=lambda result, split: by_name[result.name].by_ensemble(split, metric).get("fitted"),
    )
    return [*parts, picture(draw, f"{METRICS[metric]} over λ")]


def training(analysis: Analysis) -> list[str]:
    draw = partial(save_training_plot, [run.result for run in analysis.runs])
    return [picture(draw, "Losses of each model and validation perplexity over the steps")]


def heads(analysis: Analysis) -> list[str]:
    """Return perplexity and accuracy by depth; for masked language models, the perplexity of masked tokens."""
    rows = [["model", "depth", "perplexity", "accuracy", "tokens"]]
    if is_masked(analysis.runs[0].model.config):
        for run in analysis.runs:
            metrics = run.splits[analysis.split]
            for level, name in enumerate(loss_names(run.result.ngram_size, "masked_word")):
                # A head without targets has no loss.
                perplexity = "" if metrics[name] is None else f"{math.exp(metrics[name]):,.1f}"
                label = f"{level}-level WDR" if level else "masked word"
                rows.append([run.name, label, perplexity, "", f"{metrics['head_counts'][level]:,}"])
        return [
            paragraph("Head n predicts the n-level word difference at a masked word, where the n next words exist."),
            table(rows),
        ]
    for name, found in analysis.diagnostics.items():
        for depth, count in enumerate(found.num_targets):
            label = f"head {depth}" if depth else "next token"
            figures = [f"{found.perplexities[depth]:,.1f}", f"{found.accuracies[depth]:.1%}", f"{count:,}"]
            rows.append([name, label, *figures])
    return [
        paragraph("Head n predicts the token n positions after the next one."),
        picture(plot_heads(analysis.diagnostics), "Perplexity and accuracy by depth"),
        table(rows),
    ]


def drafts(analysis: Analysis) -> list[str]:
    generated, failures = {}, []
    for run in analysis.drafting:
        try:
            generated[run.name] = draft_statistics(run.model, analysis.text.prompts, NEW_TOKENS)
        except Unavailable as error:
            failures.append(paragraph(f"{run.name} cannot draft in generation: {error}"))
    return [
        paragraph(
            "With generate(use_mtp=True), the heads draft the tokens after the next one, and one forward pass checks "
            "them. On the text, deeper heads are measured only where the text continues as drafted."
        ),
        picture(plot_acceptance(analysis.diagnostics, generated), "Acceptance rate of each head's drafts"),
        *failures,
    ]


def generated_text(analysis: Analysis) -> list[str]:
    parts = [paragraph("Greedy generation with the ensemble of the run; the heads draft at every step.")]
    prompts = [prompt["input_ids"][0] for prompt in analysis.text.prompts[:NUM_TRACED]]
    for run in analysis.drafting:
        parts.append(f"<h3>{escape(run.name)}</h3>")
        prompt = prompts if analysis.prompt is None else analysis.prompt
        traced = traced_text(run.model, run.tokenizer, prompt, analysis.new_tokens, draft_threshold=0.0)
        parts.append(traced.fragment())
    return parts


def gains(analysis: Analysis) -> list[str]:
    rows = [["model", "ensemble", "tokens", "gain", "standard error", "number"]]
    for run in analysis.drafting:
        found = analysis.diagnostics[run.name]
        groups = {"": [found.gain], "position ": found.gain_by_place, "count ": found.gain_by_frequency}
        for group, bins in groups.items():
            for gain in bins:
                figures = [f"{gain.mean:.4f}", f"{gain.standard_error:.4f}", f"{gain.num_tokens:,}"]
                rows.append([run.name, describe_ensemble(found.ensemble), f"{group}{gain.label}", *figures])
    return [
        paragraph(
            "The gain of a token is its NLL without the ensemble minus its NLL with the ensemble. It is shown by "
            "position in the sentence and by count in the training text, with two standard errors."
        ),
        *(picture(plot_gain(analysis.diagnostics, by), f"Gain by {by}") for by in ("place", "frequency")),
        f"<details><summary>Values</summary>{table(rows)}</details>",
    ]


def gradients(analysis: Analysis) -> list[str]:
    """Return gradient diversity over the steps of the runs that logged it, or else of the trained models."""
    text = paragraph("1/n if the gradients of all n rows of a batch are equal, 1 if they are orthogonal.")
    histories = {run.name: run.result.history for run in analysis.runs}
    logged = {name: log for name, log in histories.items() if any(GRADIENT_DIVERSITY in entry for entry in log)}
    if logged:
        return [text, picture(plot_gradient_diversity(logged), "Gradient diversity over the steps of training")]
    rows = [["model", "weights", "gradient diversity", "n"]]
    for run in analysis.runs:
        # Otherwise, the trunk was frozen or trained by an adapter.
        parameters = None if run.settings["train_mode"] == "full" else "ngram_heads"
        if parameters is None or run.result.head_parameters:
            value = gradient_diversity(run.model, analysis.text.batch, parameters)
            num_rows = str(len(analysis.text.batch["labels"]))
            rows.append([run.name, "heads" if parameters else "all", f"{value:.4f}", num_rows])
    return [text, table(rows)]


def targets(analysis: Analysis) -> list[str]:
    found = wdr_map(analysis.runs[0].model, analysis.text.documents, analysis.runs[0].tokenizer)
    text = paragraph("Output embeddings and word differences of the text, projected by t-SNE. A dot is a target.")
    return [text, picture(found.figure(), "Map of the targets by level")]


# Title, whether only models that draft have it, and its parts.
SECTIONS: list[tuple[str, bool, Callable[[Analysis], list[str]]]] = [
    ("The model", False, models),
    ("Results", False, results),
    ("Training", False, training),
    ("Predictions of the heads", False, heads),
    ("Acceptance rate of drafts", True, drafts),
    ("Generated text by source", True, generated_text),
    ("Where the ensemble helps", True, gains),
    ("Gradient diversity", False, gradients),
    ("Map of the targets", False, targets),
]


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    split: str = "validation",
    max_tokens: int = DEFAULT_TOKENS,
    notify: Callable[[str], None] = print,
    prompt: str | None = None,
    new_tokens: int = DEFAULT_NEW_TOKENS,
) -> Path:
    r"""
    Analyze a finished run, together with the runs of its `--compare`, write a self-contained HTML file, and return its
    path. Unfinished compared runs are skipped. A section that the run does not allow shows why.

    Args:
        run (`str` or `Path`): The folder of the run.
        output (`str` or `Path`, *optional*): The file to write; `analysis.html` in the run's folder by default.
        split (`str`, *optional*, defaults to `"validation"`): The text to measure on, `"validation"` or `"test"`.
        max_tokens (`int`, *optional*, defaults to 30,000): Maximum number of tokens to measure on, the first ones.
        notify (`Callable[[str], None]`, *optional*): Called with progress messages; prints them by default.
        prompt (`str`, *optional*): The prompt of the text by source; by default, pieces of the split.
        new_tokens (`int`, *optional*, defaults to 64): The maximum number of tokens after each prompt.
    """
    folders, unfinished = find_runs(run)
    output = folders[0] / REPORT if output is None else Path(output)
    check_output_file("output", output)
    for folder in unfinished:
        notify(f"Skipped a compared run that is not finished: {folder}")
    runs = [load_run(folder) for folder in folders]
    analysis = Analysis(runs, split, load_text(runs[0], split, max_tokens), prompt, new_tokens)
    if prompt is not None and not analysis.drafting:
        raise InputError(f"`--prompt` needs a model that drafts, and the run in {folders[0]} has none: leave it out.")
    if prompt is not None:
        read_prompts(prompt, analysis.drafting[0].model, analysis.drafting[0].tokenizer)
    sections = []
    for title, needs_drafts, make in SECTIONS:
        if needs_drafts and not analysis.drafting:
            continue
        notify(title)
        try:
            parts = make(analysis)
        except Unavailable as error:
            parts = [paragraph(f"Not available for this run: {error}")]
        sections.append(f"<section>\n<h2>{title}</h2>\n{''.join(parts)}</section>\n")
    title = ", compared with ".join(filter(None, [runs[0].name, ", ".join(other.name for other in runs[1:])]))
    subtitle = f"{folders[0].resolve().name}, measured on {analysis.text.num_tokens:,} tokens of the {split} set."
    fields = {"title": escape(title), "subtitle": escape(subtitle), "style": STYLE, "sections": "".join(sections)}
    output.write_text(PAGE.format(**fields), encoding="utf-8")
    return output


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>\n"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the HTML of a table whose first row is the header."""
    head, *body = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    lines = [head.replace("td>", "th>"), *body]
    return "<table>" + "".join(f"<tr>{line}</tr>\n" for line in lines) + "</table>\n"


def picture(drawing: Figure | Callable[[IO[bytes]], object], description: str) -> str:
    """Return the HTML of a plot, or of one that a function saves as PNG to a file."""
    file = io.BytesIO()
    (partial(drawing.savefig, dpi=120) if isinstance(drawing, Figure) else drawing)(file)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{data}">\n'
