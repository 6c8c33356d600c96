"""The sections of a report that measure something: each is empty where it has nothing to say."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..decoding.statistics import SpeculationStatistics
from ..evaluation.gradients import GRADIENT_DIVERSITY, gradient_diversity, plot_gradient_diversity
from .diagnostics import HeadDiagnostics, draft_statistics, find_sentence_ends, head_diagnostics
from .diagnostics_figures import (
    LEAST_SHARE,
    describe_acceptance,
    describe_gain,
    describe_heads,
    plot_acceptance,
    plot_gain,
    plot_heads,
)
from .gain_bins import GainBin
from .report_page import folded, paragraph, picture, side_by_side, table
from .report_results import masked_heads
from .trained_run import NEW_TOKENS, RunText, TrainedRun
from .wdr_map import wdr_map


@dataclass
class Analysis:
    r"""
    What a report is about.

    Args:
        runs (`list[TrainedRun]`): The run, and those that it is compared with.
        split (`str`): The name of the text.
        text ([`RunText`]): What all of them are measured on.
        tell (`Callable[[str], None]`): Is told what is being done.
    """

    runs: list[TrainedRun]
    split: str
    text: RunText
    tell: Callable[[str], None]
    found: dict[str, HeadDiagnostics] = field(default_factory=dict)

    @property
    def with_ensemble(self) -> list[TrainedRun]:
        return [run for run in self.runs if run.has_ensemble]

    @property
    def diagnostics(self) -> dict[str, HeadDiagnostics]:
        """Of all models by name, found when they are asked for first; none of models that predict no next word."""
        if not self.found and self.text.predicted is not None:
            ends = find_sentence_ends(self.runs[0].tokenizer)
            for run in self.runs:
                self.tell(f"{run.name}: what the heads know")
                self.found[run.name] = head_diagnostics(
                    run.model, self.text.predicted, run.tried_lambda(), ends, self.text.token_counts
                )
        return self.found


def heads(analysis: Analysis) -> list[str]:
    """How well the next word and every head predict."""
    found = analysis.diagnostics
    if not found:
        return masked_heads(analysis.runs, analysis.split)
    rows = [["model", "depth", "perplexity", "right", "tokens"]]
    for name, figures in found.items():
        for depth, count in enumerate(figures.num_targets):
            label = f"head {depth}" if depth else "next word"
            right = f"{figures.accuracies[depth]:.1%}"
            rows.append([name, label, f"{figures.perplexities[depth]:,.1f}", right, f"{count:,}"])
    return [
        paragraph("Head n says which word comes n words after the next one; all share the output embedding."),
        picture(
            plot_heads(found),
            "Perplexity and accuracy of the next word and of every head",
            [describe_heads(name, figures) for name, figures in found.items()],
            is_wide=True,
        ),
        folded("The figures", table(rows)),
    ]


def drafts(analysis: Analysis) -> list[str]:
    """How often drafts stand, on the text and in generation."""
    runs = analysis.with_ensemble
    if not runs:
        return []
    found = analysis.diagnostics
    generated: dict[str, SpeculationStatistics] = {}
    refusals = []
    for run in runs:
        analysis.tell(f"{run.name}: drafting")
        try:
            generated[run.name] = draft_statistics(run.model, analysis.text.prompts, NEW_TOKENS)
        except ValueError as error:
            refusals.append(paragraph(f"{run.name} does not draft in generation: {error}"))
    return [
        paragraph(
            "With generate(use_mtp=True), the heads draft the words after the next one, and one forward pass checks "
            "them. A draft stands if it is what the model says itself."
        ),
        picture(
            plot_acceptance(found, generated),
            "How often the drafts of each head stand",
            [describe_acceptance(run.name, found[run.name], generated.get(run.name)) for run in runs],
        ),
        *refusals,
        paragraph(
            "Bars are two standard errors. On the text, head 2 and those after it are judged where the text goes on "
            "as drafted, which are the easier places. In generation, which is greedy and ends with the text, with "
            f"what the model can see, or after {NEW_TOKENS} tokens, all heads draft at every step and nothing is "
            "copied; by default, generate drafts only where that is likely to pay, and copies from the text before.",
            muted=True,
        ),
    ]


def gains(analysis: Analysis) -> list[str]:
    """Which tokens the ensemble helps."""
    runs = analysis.with_ensemble
    if not runs:
        return []
    found = analysis.diagnostics
    chose_none = [
        f"{run.name} chose λ=0; shown is λ={run.tried_lambda():g}, the best of the others that it tried."
        for run in runs
        if not run.result.ensemble_lambda and run.tried_lambda()
    ]
    place = "Places are counted from the last token that ends a text or a line, or is a full stop, ! or ?."
    if runs[0].model.config.is_encoder_decoder:
        place = "Places are those in the translation."
    seen = "the training text" if analysis.text.token_counts is not None else "the text itself"
    notes = (
        "The gain of a token is its NLL without the ensemble minus that with it. Bars are two standard errors, as if "
        f"tokens were independent. {place} How often a token was seen is counted in {seen}. Groups of fewer than "
        f"{LEAST_SHARE:.1%} of the tokens are not drawn."
    )
    rows = [["model", "tokens", "gain", "standard error", "number"]]
    for run in runs:
        figures = found[run.name]
        groups = [("all", [figures.gain]), ("place", figures.gain_by_place), ("seen", figures.gain_by_frequency)]
        rows += [
            [run.name, " ".join(dict.fromkeys((group, gain.label))), *_gain_cells(gain)]
            for group, gains in groups
            for gain in gains
        ]
    return [
        *map(paragraph, chose_none),
        side_by_side(
            [
                picture(
                    plot_gain(found, by),
                    f"The ensemble's gain by {by}",
                    [describe_gain(run.name, found[run.name], by) for run in runs],
                )
                for by in ("place", "frequency")
            ]
        ),
        paragraph(notes, muted=True),
        folded("The figures", table(rows)),
    ]


def _gain_cells(gain: GainBin) -> list[str]:
    return [f"{gain.mean:.4f}", f"{gain.standard_error:.4f}", f"{gain.num_tokens:,}"]


def gradients(analysis: Analysis) -> list[str]:
    """How differently the rows of a batch pull at the weights."""
    logged = {
        run.name: run.result.history
        for run in analysis.runs
        if any(GRADIENT_DIVERSITY in entry for entry in run.result.history)
    }
    explained = (
        "How differently the rows of a batch pull at the weights: 1/n if all n rows pull in one direction, 1 if each "
        "pulls in a direction of its own."
    )
    if logged:
        figure = picture(plot_gradient_diversity(logged), "Gradient diversity over the steps of training")
        batch = paragraph("Measured in training, on a batch of the training data that stayed the same.", muted=True)
        return [paragraph(explained), figure, batch]
    batch = analysis.text.batch
    num_rows = len(batch["labels"])
    rows = [["model", "weights", "gradient diversity"]]
    for run in analysis.runs:
        analysis.tell(f"{run.name}: gradient diversity")
        # What was frozen, or an adapter's, did not pull.
        parameters = None if run.settings["train_mode"] == "full" else "ngram_heads"
        value = gradient_diversity(run.model, batch, parameters)
        rows.append([run.name, "heads" if parameters else "all", f"{value:.4f}"])
    source = "training data" if analysis.text.token_counts is not None else f"{analysis.split} set"
    return [
        paragraph(explained),
        table(rows),
        paragraph(
            f"Of the trained models, on {num_rows} rows of the {source} (1/n = {1 / num_rows:.4f}). With "
            "--gradient_diversity_steps, the training scripts measure it over the training.",
            muted=True,
        ),
    ]


def targets(analysis: Analysis) -> list[str]:
    """The map of embeddings and word differences."""
    run = analysis.runs[0]
    analysis.tell(f"{run.name}: the map of its targets")
    found = wdr_map(run.model, analysis.text.documents, run.tokenizer)
    per_word = ", ".join(f"{level.targets_per_word:.1f}" for level in found.diversity)
    levels = ", ".join(str(level.level) for level in found.diversity)
    return [
        paragraph(
            "Output embeddings of running text and its word differences, on one plane: a point belongs to the word "
            "that it is a target for."
        ),
        found.fragment(),
        picture(
            found.figure(),
            "The map of the targets by level",
            [f"In this text, a word has {per_word} different targets on average at levels {levels}."],
            is_wide=True,
        ),
    ]
