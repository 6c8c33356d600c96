"""The sections of a report that measure the models; a section is empty if it does not apply."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..decoding.statistics import SpeculationStatistics
from ..evaluation.gradients import GRADIENT_DIVERSITY, gradient_diversity, plot_gradient_diversity
from ..evaluation.unavailable import Unavailable
from ..method.ensemble import describe_ensemble, ensemble_arguments
from .diagnostics import HeadDiagnostics, draft_statistics, find_sentence_ends, head_diagnostics
from .diagnostics_figures import (
    AXIS_OF,
    LEAST_SHARE,
    plot_acceptance,
    plot_gain,
    plot_heads,
)
from .gain_bins import GainBin
from .report_page import folded, heading, paragraph, picture, side_by_side, table
from .report_results import masked_heads
from .traced_text import DEFAULT_NEW_TOKENS, traced_text
from .trained_run import NEW_TOKENS, RunText, TrainedRun
from .wdr_map import wdr_map

# The number of prompts of the text by source.
NUM_TRACED = 3


@dataclass
class Analysis:
    r"""
    The runs and the text of a report.

    Args:
        runs (`list[TrainedRun]`): The run, then the runs it is compared with.
        split (`str`): The name of the split.
        text ([`RunText`]): The text to measure on.
        notify (`Callable[[str], None]`): Function called with progress messages.
        prompt (`str`, *optional*): The prompt of the text by source; by default, pieces of the text.
        new_tokens (`int`, *optional*, defaults to 64): The maximum number of tokens after each prompt.
        cached_diagnostics (`dict[str, HeadDiagnostics]`, *optional*): The diagnostics computed so far, by model name.
    """

    runs: list[TrainedRun]
    split: str
    text: RunText
    notify: Callable[[str], None]
    prompt: str | None = None
    new_tokens: int = DEFAULT_NEW_TOKENS
    cached_diagnostics: dict[str, HeadDiagnostics] = field(default_factory=dict)

    @property
    def with_ensemble(self) -> list[TrainedRun]:
        return [run for run in self.runs if run.has_ensemble]

    @property
    def diagnostics(self) -> dict[str, HeadDiagnostics]:
        """The diagnostics of all models by name, computed on first use; empty for masked language models."""
        if not self.cached_diagnostics and self.text.predicted is not None:
            ends = find_sentence_ends(self.runs[0].tokenizer)
            for run in self.runs:
                self.notify(f"{run.name}: head diagnostics")
                self.cached_diagnostics[run.name] = head_diagnostics(
                    run.model,
                    self.text.predicted,
                    sentence_ends=ends,
                    token_counts=self.text.token_counts,
                    **ensemble_arguments(run.tried_ensemble()),
                )
        return self.cached_diagnostics


def heads(analysis: Analysis) -> list[str]:
    """
    Return the HTML pieces of the section on perplexity and accuracy by depth; for masked language models, those of
    `masked_heads`.
    """
    by_name = analysis.diagnostics
    if not by_name:
        return masked_heads(analysis.runs, analysis.split)
    rows = [["model", "depth", "perplexity", "accuracy", "tokens"]]
    for name, diagnostics in by_name.items():
        for depth, count in enumerate(diagnostics.num_targets):
            label = f"head {depth}" if depth else "next token"
            accuracy = f"{diagnostics.accuracies[depth]:.1%}"
            rows.append([name, label, f"{diagnostics.perplexities[depth]:,.1f}", accuracy, f"{count:,}"])
    return [
        paragraph("Head n predicts the token n positions after the next one. All heads share the output embedding."),
        picture(
            plot_heads(by_name),
            "Perplexity and accuracy of the next-token prediction and of every head",
            is_wide=True,
        ),
        folded("Values", table(rows)),
    ]


def drafts(analysis: Analysis) -> list[str]:
    """
    Return the HTML pieces of the section on acceptance rates, on the text and in generation; empty if no model has
    drafting heads.
    """
    runs = analysis.with_ensemble
    if not runs:
        return []
    by_name = analysis.diagnostics
    generated: dict[str, SpeculationStatistics] = {}
    failures = []
    for run in runs:
        analysis.notify(f"{run.name}: drafting")
        try:
            generated[run.name] = draft_statistics(run.model, analysis.text.prompts, NEW_TOKENS)
        except Unavailable as error:
            failures.append(paragraph(f"{run.name} cannot draft in generation: {error}"))
    return [
        paragraph(
            "With generate(use_mtp=True), the heads draft the tokens after the next one, and one forward pass checks "
            "them. A draft is accepted if it equals the model's own choice."
        ),
        picture(
            plot_acceptance(by_name, generated),
            "Acceptance rate of each head's drafts",
        ),
        *failures,
        paragraph(
            "Error bars are two standard errors. On the text, head 2 and deeper heads are measured only where the "
            "text continues as drafted, which is easier to predict. Generation is greedy, with at most "
            f"{NEW_TOKENS} new tokens; all heads draft at every step, without prompt lookup. By default, generate "
            "drafts only where that is likely to save time, and also uses prompt lookup.",
            muted=True,
        ),
    ]


def generated_text(analysis: Analysis) -> list[str]:
    """
    Return the HTML pieces of the section with a generated text by source; empty if no model has drafting heads.
    """
    pieces = []
    for run in analysis.with_ensemble:
        analysis.notify(f"{run.name}: text by source")
        pieces.append(heading(run.name))
        prompt = analysis.prompt
        if prompt is None:
            prompt = [prompt["input_ids"][0] for prompt in analysis.text.prompts[:NUM_TRACED]]
        try:
            traced = traced_text(run.model, run.tokenizer, prompt, analysis.new_tokens, draft_threshold=0.0)
            pieces.append(traced.fragment())
        except Unavailable as error:
            pieces.append(paragraph(f"{run.name} cannot draft in generation: {error}"))
    if not pieces:
        return []
    source = f"pieces of the {analysis.split} set" if analysis.prompt is None else "the given prompt"
    return [
        paragraph(
            f"Greedy generation after {source}, with the ensemble of the run. The colours show which tokens the "
            "model chose itself, and which were drafted and accepted; the text is the same without drafts."
        ),
        paragraph(
            "All heads draft at every step (draft_threshold=0), to show everything that they propose. By default, "
            "generate drafts only where that is likely to save time. Prompt lookup copies where that is more likely "
            "to be accepted.",
            muted=True,
        ),
        *pieces,
    ]


def gains(analysis: Analysis) -> list[str]:
    """
    Return the HTML pieces of the section on the ensemble's gain by group of tokens; empty if no model has an ensemble.
    """
    runs = analysis.with_ensemble
    if not runs:
        return []
    by_name = analysis.diagnostics
    without_lambda = [
        f"{run.name} chose λ=0. The gain is shown for {describe_ensemble(run.tried_ensemble())}, the best above 0."
        for run in runs
        if run.result.ensemble == 0 and run.tried_ensemble()
    ]
    counting = "Positions are counted from the last end of a text, line or sentence (a full stop, ! or ?)."
    if runs[0].model.config.is_encoder_decoder:
        counting = "Positions are those in the translation."
    counted_text = "the training text" if analysis.text.token_counts is not None else "the text itself"
    notes = (
        "The gain of a token is its NLL without the ensemble minus its NLL with the ensemble. Error bars are two "
        f"standard errors for independent tokens. {counting} The count of a token is its count in {counted_text}. "
        f"Groups of fewer than {LEAST_SHARE:.1%} of the tokens are not shown."
    )
    rows = [["model", "tokens", "gain", "standard error", "number"]]
    for run in runs:
        diagnostics = by_name[run.name]
        groups = [
            ("all", [diagnostics.gain]),
            ("position", diagnostics.gain_by_place),
            ("count", diagnostics.gain_by_frequency),
        ]
        rows += [
            [run.name, " ".join(dict.fromkeys((group, gain.label))), *_gain_cells(gain)]
            for group, gains in groups
            for gain in gains
        ]
    return [
        *map(paragraph, without_lambda),
        side_by_side(
            [
                picture(
                    plot_gain(by_name, by),
                    f"The ensemble's gain by {AXIS_OF[by]}",
                )
                for by in ("place", "frequency")
            ]
        ),
        paragraph(notes, muted=True),
        folded("Values", table(rows)),
    ]


def _gain_cells(gain: GainBin) -> list[str]:
    return [f"{gain.mean:.4f}", f"{gain.standard_error:.4f}", f"{gain.num_tokens:,}"]


def gradients(analysis: Analysis) -> list[str]:
    """
    Return the HTML pieces of the section on gradient diversity: over the steps, of the runs that logged it, or, if
    none did, measured now on the trained models.
    """
    logged = {
        run.name: run.result.history
        for run in analysis.runs
        if any(GRADIENT_DIVERSITY in entry for entry in run.result.history)
    }
    definition = (
        "Gradient diversity says how much the gradients of the rows of a batch differ: 1/n if all n gradients are "
        "equal, 1 if they are orthogonal."
    )
    if logged:
        figure = picture(plot_gradient_diversity(logged), "Gradient diversity over the steps of training")
        batch = paragraph("Measured during training, on a fixed batch of the training data.", muted=True)
        return [paragraph(definition), figure, batch]
    batch = analysis.text.batch
    num_rows = len(batch["labels"])
    rows = [["model", "weights", "gradient diversity"]]
    for run in analysis.runs:
        # Otherwise, the trunk was frozen or trained by an adapter.
        parameters = None if run.settings["train_mode"] == "full" else "ngram_heads"
        if parameters is not None and not run.result.head_parameters:
            continue
        analysis.notify(f"{run.name}: gradient diversity")
        value = gradient_diversity(run.model, batch, parameters)
        rows.append([run.name, "heads" if parameters else "all", f"{value:.4f}"])
    if len(rows) == 1:
        return []
    source = "training data" if analysis.text.token_counts is not None else f"{analysis.split} set"
    return [
        paragraph(definition),
        table(rows),
        paragraph(
            f"Measured on the trained models, with {num_rows} rows of the {source} (1/n = {1 / num_rows:.4f}). With "
            "--gradient_diversity_steps, the training scripts measure it during training.",
            muted=True,
        ),
    ]


def targets(analysis: Analysis) -> list[str]:
    """Return the HTML pieces of the section with the first run's map of embeddings and word differences."""
    run = analysis.runs[0]
    analysis.notify(f"{run.name}: map of the targets")
    target_map = wdr_map(run.model, analysis.text.documents, run.tokenizer)
    targets_per_token = ", ".join(f"{level.targets_per_word:.1f}" for level in target_map.diversity)
    levels = ", ".join(str(level.level) for level in target_map.diversity)
    return [
        paragraph(
            "Output embeddings and word differences of a text, projected to two dimensions by t-SNE. Each point is a "
            "target of one token."
        ),
        picture(
            target_map.figure(),
            "Map of the targets by level",
            [f"In this text, a token has on average {targets_per_token} different targets at levels {levels}."],
            is_wide=True,
        ),
    ]
