"""The sections of a report from files of the run: settings, results, log."""

import math
from functools import partial

from ..backbones.registry import is_masked
from ..method.ensemble import describe_ensemble
from ..training.common.plots import plot_over_lambda, save_training_plot
from ..training.trainer import loss_names
from .diagnostics_figures import plot_levels
from .report_page import folded, heading, paragraph, picture, table
from .trained_run import TrainedRun

# The metrics and their titles; the plot over λ shows the first one that the run has.
METRICS = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "token_perplexity": "Perplexity by token",
    "perplexity": "Perplexity by word",
    "accuracy": "Accuracy",
}
HIGHER_IS_BETTER = ("bleu", "chrf", "accuracy")


def models(runs: list[TrainedRun]) -> list[str]:
    """Return the HTML pieces of the section on the models: classes, sizes, ensembles, and the first run's settings."""
    rows = [["model", "class", "parameters", "in heads", "N", "ensemble"]]
    for run in runs:
        result = run.result
        rows.append(
            [
                run.name,
                type(run.model).__name__,
                f"{result.num_parameters:,}",
                f"{result.head_parameters:,}",
                str(result.ngram_size),
                describe_ensemble(result.ensemble) if run.has_ensemble else "",
            ]
        )
    vocab_size, width = runs[0].model.get_output_embeddings().weight.shape
    settings = [["setting", "value"], *([name, str(value)] for name, value in runs[0].settings.items())]
    return [
        table(rows),
        paragraph(f"Output embeddings: {vocab_size:,} tokens of width {width}, shared by all heads of a model."),
        folded("Settings", table(settings)),
    ]


def results(runs: list[TrainedRun]) -> list[str]:
    """
    Return the HTML pieces of the section on the results: tables per metric, by split and λ, and with and without the
    heads; and a plot over λ if a model has an ensemble.
    """
    parts = []
    metrics = _metrics(runs)
    for metric, label in metrics.items():
        parts += [heading(label), table(_metric_table(runs, metric, label))]
        by_ensemble = _ensemble_table(runs, metric)
        parts += [table(by_ensemble)] if by_ensemble else []
    if any(run.has_ensemble for run in runs):
        parts.append(paragraph("* best ensemble on validation, saved with the model.", muted=True))
        parts += _over_lambda(runs, *next(iter(metrics.items())))
    return parts


def _metrics(runs: list[TrainedRun]) -> dict[str, str]:
    """Return the titles of the metrics that any of these runs has, by metric. Equal perplexities are listed once."""
    metrics = {
        metric: label
        for metric, label in METRICS.items()
        if any(run.by_lambda(split, metric) for run in runs for split in run.splits)
    }
    if is_masked(runs[0].model.config):
        metrics["perplexity"] = "Perplexity of masked tokens"
    elif all(split.get("num_words") == split["num_tokens"] for run in runs for split in run.splits.values()):
        # The same as by word.
        metrics.pop("token_perplexity")
    return metrics


def _metric_table(runs: list[TrainedRun], metric: str, label: str) -> list[list[str]]:
    cells = {(run.name, split): run.by_lambda(split, metric) for run in runs for split in run.splits}
    lambdas = sorted({value for by_lambda in cells.values() for value in by_lambda})
    chosen = {run.name: run.result.ensemble for run in runs if run.has_ensemble}
    rows = [["model", "split", *([f"λ={value:g}" for value in lambdas] if chosen else [label])]]
    number_format = ".1%" if metric == "accuracy" else ",.2f"
    for (name, split), by_lambda in cells.items():
        marks = {value: "*" if chosen.get(name) == value else "" for value in lambdas}
        figures = [
            f"{by_lambda[value]:{number_format}}{marks[value]}" if value in by_lambda else "" for value in lambdas
        ]
        rows += [[name, split, *figures]] if by_lambda else []
    return rows


def _ensemble_table(runs: list[TrainedRun], metric: str) -> list[list[str]]:
    """Return a table of a metric by ensemble: without heads, temperature, best λ, fitted; empty without weights."""
    cells = {(run.name, split): run.by_ensemble(split, metric) for run in runs for split in run.splits}
    headings = list(dict.fromkeys(name for figures in cells.values() for name in figures))
    if len(headings) < 2:
        return []
    rows = [
        [name, split, *(f"{figures[heading]:,.2f}" if heading in figures else "" for heading in headings)]
        for (name, split), figures in cells.items()
    ]
    return [["model", "split", *headings], *rows]


def _over_lambda(runs: list[TrainedRun], metric: str, label: str) -> list[str]:
    with_ensemble = [run for run in runs if run.has_ensemble]
    run = with_ensemble[0]
    by_split = {split: run.by_lambda(split, metric) for split in run.splits}
    most = max(map(len, by_split.values()))
    # A test set may have been translated with only two values of λ.
    splits = [split for split, by_lambda in by_split.items() if len(by_lambda) == most]
    if most < 2:
        return []
    by_name = {run.name: run for run in runs}
    sentences = []
    for run in with_ensemble:
        by_lambda = run.by_lambda(splits[0], metric)
        better = max if metric in HIGHER_IS_BETTER else min
        best = better(by_lambda, key=by_lambda.get)
        verdict = f"is best at λ={best:g} ({by_lambda[best]:.2f}; {by_lambda[0.0]:.2f} without the ensemble)"
        if best == 0:
            verdict = f"is best without the ensemble ({by_lambda[0.0]:.2f})"
        sentences.append(f"{label} on {splits[0]}: {run.name} {verdict}.")
    figure = picture(
        lambda file: plot_over_lambda(
            [run.result for run in runs],
            splits,
            lambda result, split: by_name[result.name].by_lambda(split, metric),
            label,
            file,
            lambda result, split: by_name[result.name].by_ensemble(split, metric).get("fitted"),
        ),
        f"{label} over λ",
        sentences,
        is_wide=len(splits) > 1,
    )
    return [heading("The ensemble over λ"), figure]


def training(runs: list[TrainedRun]) -> list[str]:
    """Return the HTML pieces of the section on training: losses and validation perplexity over the steps."""
    sentences = []
    for run in runs:
        evaluations = {
            entry["step"]: entry["eval_perplexity"]
            for entry in run.result.history
            if math.isfinite(entry.get("eval_perplexity", math.inf))
        }
        if evaluations:
            best = min(evaluations, key=evaluations.get)
            sentences.append(
                f"{run.name}: best validation perplexity {evaluations[best]:,.2f}, after {best:,} of "
                f"{max(evaluations):,} steps."
            )
    return [
        picture(
            partial(save_training_plot, [run.result for run in runs]),
            "Losses of each model and validation perplexity over the steps",
            sentences,
            is_wide=True,
        )
    ]


def masked_heads(runs: list[TrainedRun], split: str) -> list[str]:
    """
    Return the HTML pieces of the section on heads for masked language models: perplexity of the masked tokens of a
    split by the model's own prediction and by each head.
    """
    rows, perplexities = [["model", "level", "perplexity", "masked tokens"]], {}
    for run in runs:
        metrics = run.splits[split]
        losses = [metrics[name] for name in loss_names(run.result.ngram_size, "masked_word")]
        # A head without targets has no loss.
        perplexities[run.name] = [math.nan if loss is None else math.exp(loss) for loss in losses]
        for level, (perplexity, count) in enumerate(zip(perplexities[run.name], metrics["head_counts"], strict=True)):
            label = f"{level}-level WDR" if level else "masked word"
            rows.append([run.name, label, f"{perplexity:,.1f}" if count else "", f"{count:,}"])
    return [
        paragraph(
            "Head n predicts the n-level word difference at a masked word. Composed with the n words after it, the "
            "difference gives the masked word. A head has targets only where these words exist: few with the "
            "composition `masked`."
        ),
        picture(plot_levels(perplexities), "Perplexity of masked tokens, by the model itself and by each head"),
        folded("Values", table(rows)),
    ]
