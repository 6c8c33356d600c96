"""The paper's claims, judged by the results."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngram_wdr_hf.training.common.model_card import as_markdown

from .page import mean_diversity
from .results import Results
from .stats import Difference, interval, paired
from .tables import Experiment, load_experiment, table_names

CONFIRMED, NOT_CONFIRMED, MIXED, NOT_TESTED = "confirmed", "not confirmed", "mixed", "not tested"
# The scales that claims are judged at; the scale of the tests says nothing about them. Of `small` and its beginning,
# `short`, the first with a verdict counts.
SCALES = (("paper",), ("small", "short"))


@dataclass(frozen=True)
class Finding:
    """
    What the results say about one part of a claim.

    Args:
        text (`str`): The part and its figure.
        holds (`bool`, *optional*): Whether it holds; `None` with too few seeds to say.
        seeds (`int`): Number of seeds.
    """

    text: str
    holds: bool | None
    seeds: int


def judge(findings: list[Finding], kind: str) -> str:
    """
    Return the verdict on a claim: confirmed if all parts hold, not confirmed if none does, mixed otherwise, and not
    tested if there is nothing to judge by. The claim that results are mixed is confirmed if they are.
    """
    outcomes = {finding.holds for finding in findings} - {None}
    if not outcomes:
        return NOT_TESTED
    if kind == "mixed":
        return CONFIRMED if len(outcomes) == 2 else NOT_CONFIRMED
    if len(outcomes) == 2:
        return MIXED
    return CONFIRMED if outcomes == {True} else NOT_CONFIRMED


def find(claim: dict[str, Any], experiment: Experiment, results: Results) -> list[Finding]:
    """Return what the results say about a claim, part by part; parts without figures are left out."""
    kinds = {
        "difference": _differences,
        "mixed": _differences,
        "best λ": _best_lambdas,
        "gradient diversity": _diversities,
        "smaller dataset": _smaller_datasets,
    }
    return list(kinds[claim["kind"]](claim, experiment, results))


def _in_favour(difference: Difference, sign: int, least: float = 0.0) -> bool | None:
    """
    Return whether a difference has this sign and at least this size: its whole interval has the sign, and its mean the
    size. `None` for one pair.
    """
    if difference.low is None:
        return None
    nearest = min(sign * difference.low, sign * difference.high)
    return nearest > 0 and sign * difference.mean >= least


def _differences(claim: dict[str, Any], experiment: Experiment, results: Results) -> Iterable[Finding]:
    sign = 1 if claim["better"] == "higher" else -1
    split = claim.get("split", "test")
    for group in experiment.groups:
        for pair in claim["pairs"]:
            values = [results.values(group, system, split, column) for system, column in (pair["of"], pair["to"])]
            difference = paired(*values)
            if difference is not None:
                names = " − ".join(f"{experiment.label(system)} ({column})" for system, column in pair.values())
                text = f"{_place(experiment, group)}{names}: {difference.text()}"
                yield Finding(text, _in_favour(difference, sign, claim.get("by", 0.0)), difference.count)


def _best_lambdas(claim: dict[str, Any], experiment: Experiment, results: Results) -> Iterable[Finding]:
    for group in experiment.groups:
        for system in claim["of"]:
            records = results.of(group, system)
            values = [record["best_lambda"] for record in records if record["best_lambda"] is not None]
            if values:
                mean = interval(values).mean
                holds = abs(mean - claim["value"]) <= claim["within"] + 1e-9 if len(values) > 1 else None
                text = f"{_place(experiment, group)}{experiment.label(system)}: {mean:.2f}"
                yield Finding(text, holds, len(values))


def _diversities(claim: dict[str, Any], experiment: Experiment, results: Results) -> Iterable[Finding]:
    for group in experiment.groups:
        difference = paired(*(mean_diversity(results, group, claim[side]) for side in ("of", "to")))
        if difference is not None:
            names = f"{experiment.label(claim['of'])} − {experiment.label(claim['to'])}"
            text = f"{_place(experiment, group)}{names}: {difference.text(3)}"
            yield Finding(text, _in_favour(difference, 1), difference.count)


def _smaller_datasets(claim: dict[str, Any], experiment: Experiment, results: Results) -> Iterable[Finding]:
    """Yield, for pairs of groups, how much greater the relative gain is on the first one, in percent."""
    for pair in claim["pairs"]:
        gains = []
        for group in pair["groups"]:
            new, old = (results.values(group, *_where(pair[side])) for side in ("of", "to"))
            gains.append({seed: 100 * (1 - new[seed] / old[seed]) for seed in new.keys() & old.keys()})
        difference = paired(*gains)
        if difference is not None:
            places = [experiment.groups[group]["label"] for group in pair["groups"]]
            text = f"gain in percent, {' − '.join(places)}: {difference.text()}"
            yield Finding(text, _in_favour(difference, 1), difference.count)


def _where(side: list[str]) -> tuple[str, str, str]:
    system, column = side
    return system, "test", column


def _place(experiment: Experiment, group: str) -> str:
    return f"{experiment.groups[group]['label']}: " if len(experiment.groups) > 1 else ""


def verdict_rows(folder: Path) -> list[list[str]]:
    """Return a row per claim and scale with results in `folder`, the heading first; without results, one per claim."""
    rows = [
        ["table", "claim", "the paper", "scale", "seeds", "the results: difference [95 % interval]", "verdict", "why"]
    ]
    for table in table_names():
        for claim in load_experiment(table, "paper").content["claims"]:
            judged = [_first_verdict([_judged(claim, table, scale, folder) for scale in scales]) for scales in SCALES]
            for cells in list(filter(None, judged)) or [["", "", "", NOT_TESTED]]:
                why = claim.get("why", "") if cells[-1] in (NOT_CONFIRMED, MIXED) else ""
                rows.append([table, claim["claim"], claim["paper"], *cells, why])
    return rows


def _first_verdict(judged: list[list[str] | None]) -> list[str] | None:
    """Return the first row with a verdict, or the first one without, or `None` if there is none at all."""
    rows = list(filter(None, judged))
    return next((row for row in rows if row[-1] != NOT_TESTED), rows[0] if rows else None)


def _judged(claim: dict[str, Any], table: str, scale: str, folder: Path) -> list[str] | None:
    """Return scale, seeds, findings and verdict; `None` without figures at this scale."""
    path = folder / f"{table}-{scale}.json"
    findings = find(claim, load_experiment(table, scale), Results.load(path)) if path.exists() else []
    if not findings:
        return None
    seeds = sorted({finding.seeds for finding in findings})
    text = "; ".join(finding.text for finding in findings)
    return [
        scale,
        "–".join(f"{count}" for count in (seeds[0], seeds[-1])[: len(seeds)]),
        text,
        judge(findings, claim["kind"]),
    ]


def write_verdicts(results: Path, page: Path) -> None:
    """Judge the claims of all tables by the results in a folder, and write the page."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(
        f"""# The paper's claims

Written by `python experiments/verdicts.py` from `experiments/results`. A difference counts if its 95 % interval over \
seeds, by Student's t, does not contain 0. A claim is confirmed if all its parts hold, not confirmed if none does, \
mixed if some do, and not tested without results or with one seed only. Perplexity is better if it is lower, BLEU if \
it is higher.

{as_markdown(verdict_rows(results))}
""",
        encoding="utf-8",
    )
