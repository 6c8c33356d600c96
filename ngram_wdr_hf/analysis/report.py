"""The HTML report on a trained run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ..data.errors import InputError
from ..evaluation.unavailable import Unavailable
from ..training.common.checks import check_output_file
from .report_page import Section, page, paragraph
from .report_results import models, results, training
from .report_sections import Analysis, drafts, gains, generated_text, gradients, heads, targets
from .traced_text import DEFAULT_NEW_TOKENS, read_prompts
from .trained_run import TrainedRun, find_runs, load_run, load_text

REPORT = "analysis.html"
DEFAULT_TOKENS = 30_000
SECTIONS: dict[str, Callable[[Analysis], list[str]]] = {
    "The model": lambda analysis: models(analysis.runs),
    "Results": lambda analysis: results(analysis.runs),
    "Training": lambda analysis: training(analysis.runs),
    "Predictions of the heads": heads,
    "Acceptance rate of drafts": drafts,
    "Generated text by source": generated_text,
    "Where the ensemble helps": gains,
    "Gradient diversity": gradients,
    "Map of the targets": targets,
}


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
    Analyze a finished run, together with the runs of its `--compare`, and write a self-contained HTML file. Unfinished
    compared runs are skipped. A section that the run does not allow shows why. Any other error in a section
    is raised after the report is written.

    Args:
        run (`str` or `Path`): The folder of the run.
        output (`str` or `Path`, *optional*): The file to write; `analysis.html` in the run's folder by default.
        split (`str`, *optional*, defaults to `"validation"`): The text to measure on, `"validation"` or `"test"`.
        max_tokens (`int`, *optional*, defaults to 30,000): Maximum number of tokens to measure on, the first ones.
        notify (`Callable[[str], None]`, *optional*): Called with progress messages; prints them by default.
        prompt (`str`, *optional*): The prompt of the text by source; by default, pieces of the split.
        new_tokens (`int`, *optional*, defaults to 64): The maximum number of tokens after each prompt.

    Returns:
        `Path`: The written file.
    """
    folders, unfinished = find_runs(run)
    output = folders[0] / REPORT if output is None else Path(output)
    check_output_file("output", output)
    notify(f"Reading the run in {folders[0]}")
    for folder in unfinished:
        notify(f"Skipped a compared run that is not finished: {folder}")
    runs = [load_run(folder) for folder in folders]
    if prompt is not None:
        _check_prompt(prompt, runs)
    analysis = Analysis(runs, split, load_text(runs[0], split, max_tokens), notify, prompt, new_tokens)
    sections, errors = [], []
    for title, make in SECTIONS.items():
        try:
            sections.append(_section(title, make, analysis))
        except Exception as error:  # raised below, after the other sections are written
            notify(f"{title}: failed ({type(error).__name__})")
            sections.append(Section(title, [paragraph(f"Failed: {type(error).__name__}: {error}")]))
            errors.append(error)
    compared_names = ", ".join(run.name for run in runs[1:])
    title = f"{runs[0].name}, compared with {compared_names}" if compared_names else runs[0].name
    text = f"{analysis.text.num_tokens:,} tokens of its {split} set"
    subtitle = f"Report on the run in the folder {folders[0].resolve().name}, measured on {text}."
    output.write_text(page(title, subtitle, [section for section in sections if section.parts]), encoding="utf-8")
    if len(errors) > 1:
        raise ExceptionGroup("Several sections of the report failed.", errors)
    if errors:
        raise errors[0]
    return output


def _check_prompt(prompt: str, runs: Sequence[TrainedRun]) -> None:
    """Raise an `InputError` if no run has a model that drafts after a prompt, or if one cannot read it."""
    drafting = [run for run in runs if run.has_ensemble]
    if not drafting:
        raise InputError(
            f"`--prompt` needs a model with heads that generates text, and the run in {runs[0].folder} has none: "
            "leave it out."
        )
    for run in drafting:
        read_prompts("--prompt", prompt, run.model, run.tokenizer)


def _section(title: str, make: Callable[[Analysis], list[str]], analysis: Analysis) -> Section:
    """Return the section that `make` fills. If the run does not allow it, the section shows why; `notify` as well."""
    try:
        return Section(title, make(analysis))
    except Unavailable as error:
        analysis.notify(f"{title}: not available for this run ({error})")
        return Section(title, [paragraph(f"Not available for this run: {error}")])
