"""The page of the paper's claims: a table of all verdicts, then each claim case by case."""

from collections.abc import Iterable
from pathlib import Path

from ngram_wdr_hf.training.report import as_markdown

from .claims import CONFIRMED, NOT_TESTED, Judgement, judgements, together
from .tables import load_experiment, table_names

# The tables in the paper's order.
ORDER = ("ptb", "primary", "nmt", "mlm")
INTRODUCTION = """\
# The paper's claims

Written by `python experiments/verdicts.py` from `experiments/results`. Figures are differences between two systems \
with the same seed, on the test set, with a 95 % interval over seeds by Student's t. Perplexity is better if it is \
lower, BLEU if it is higher. The verdict is about the mean of all cases with two seeds or more: **confirmed** or \
**contradicted** if the whole interval is on one side of 0, or of the size that the claim states (for a best λ: near \
the claimed value or away from it), **mixed** if some cases confirm the claim and others contradict it, **not \
tested** without results or with one seed only, otherwise **undecided**."""
NOTES = """\
The best λ is chosen on the validation set, and λ = 0 is a choice: the ensemble can hardly lose against the same \
model without it, and a difference of exactly 0 means that λ = 0 was chosen. Some runs of one seed are from different \
machines, whose rounding alone changes a perplexity by up to 1: that is noise in the differences, too. A verdict \
holds for its scale: `small` are models of about a million parameters that are trained for minutes, `paper` are the \
paper's own sizes."""


def write_verdicts(results: Path, page: Path) -> None:
    """Judge the claims of all tables by the results in a folder, and write the page."""
    judged = {name: judgements(name, results) for name in sorted(table_names(), key=ORDER.index)}
    parts = [INTRODUCTION, summary_table([one for found in judged.values() for one in found]), NOTES]
    for name, found in judged.items():
        if tested := [one for one in found if one.cases]:
            parts.append(f"## {load_experiment(name, 'paper').content['title']}")
            for one in tested:
                parts += _details(one)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")


def summary_table(judged: Iterable[Judgement]) -> str:
    """Return a row per claim and scale: the paper's figures, the mean of all cases, and the verdict."""
    rows = [["claim", "the paper", "here", "table", "seeds", "verdict"]]
    for one in judged:
        mean = together(one.cases)
        here = one.claim.text(mean) if mean and one.claim.kind != "mixed" else ""
        place = [f"{one.claim.table}-{one.scale}" if one.scale else one.claim.table, one.seeds]
        rows.append([one.claim.content["claim"], one.claim.content["paper"], here, *place, one.verdict])
    return as_markdown(rows)


def _details(one: Judgement) -> Iterable[str]:
    """Yield the heading of a claim, its verdict, its cases, and the reason where the claim is not confirmed."""
    yield f"### {one.claim.content['claim'].removesuffix('.')}"
    yield f"The paper: {one.claim.content['paper']}. Verdict at scale `{one.scale}`: **{one.verdict}**."
    rows = [["case", "seeds", "result", "alone"]]
    rows += [
        [case.name, f"{len(case.values)}", one.claim.text(case.values), one.claim.outcome(case.values)]
        for case in one.cases
    ]
    yield as_markdown(rows)
    if "why" in one.claim.content and one.verdict not in (CONFIRMED, NOT_TESTED):
        yield f"Why: {one.claim.content['why']}"
