"""The report on a trained run, as one HTML file."""

from collections.abc import Callable
from pathlib import Path

from ..data.errors import InputError
from .report_page import Section, page, paragraph
from .report_results import about, results, training
from .report_sections import Analysis, drafts, gains, gradients, heads, targets
from .trained_run import find_runs, load_run, load_text

REPORT = "analysis.html"
DEFAULT_TOKENS = 30_000
SECTIONS: dict[str, Callable[[Analysis], list[str]]] = {
    "The model": lambda analysis: about(analysis.runs),
    "Results": lambda analysis: results(analysis.runs),
    "Training": lambda analysis: training(analysis.runs),
    "What the heads know": heads,
    "How far drafts stand": drafts,
    "Where the ensemble helps": gains,
    "Gradient diversity": gradients,
    "What there is to predict": targets,
}


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    split: str = "validation",
    max_tokens: int = DEFAULT_TOKENS,
    tell: Callable[[str], None] = print,
) -> Path:
    r"""
    Analyses a trained run, and the runs that `--compare` put beside it, and writes one HTML file that needs nothing
    else.

    Args:
        run (`str` or `Path`): The folder of the run.
        output (`str` or `Path`, *optional*): The file to write; `analysis.html` in the run's folder by default.
        split (`str`, *optional*, defaults to `"validation"`): The text to measure on, `"validation"` or `"test"`.
        max_tokens (`int`, *optional*, defaults to 30,000): Of a longer text, so many tokens.
        tell (`Callable[[str], None]`, *optional*): Is told what is being done; prints it by default.

    Returns:
        `Path`: The file.
    """
    folders, unfinished = find_runs(run)
    output = folders[0] / REPORT if output is None else Path(output)
    if output.is_dir() or not output.parent.is_dir():
        raise InputError(f"The report cannot be written to {output}: give a file in a folder that is there.")
    tell(f"Reading the run in {folders[0]}")
    for folder in unfinished:
        tell(f"Left out, for it is not finished: {folder}")
    runs = [load_run(folder) for folder in folders]
    analysis = Analysis(runs, split, load_text(runs[0], split, max_tokens), tell)
    sections = [_attempt(title, make, analysis) for title, make in SECTIONS.items()]
    others = ", ".join(run.name for run in runs[1:])
    title = f"{runs[0].name}, beside {others}" if others else runs[0].name
    text = f"{analysis.text.num_tokens:,} tokens of its {split} set"
    subtitle = f"What was trained in the folder {folders[0].resolve().name}, looked at with {text}."
    output.write_text(page(title, subtitle, [section for section in sections if section.parts]), encoding="utf-8")
    return output


def _attempt(title: str, make: Callable[[Analysis], list[str]], analysis: Analysis) -> Section:
    """A section that cannot be made says why, and the others are made all the same."""
    try:
        return Section(title, make(analysis))
    except Exception as error:  # whatever it is, the work on the other sections is not lost
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        analysis.tell(f"{title}: not for this run ({kind}{error})")
        return Section(title, [paragraph(f"Not for this run: {kind}{error}")])
