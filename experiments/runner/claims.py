"""The paper's claims, judged by the results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from .page import diversity_by_step
from .results import Results
from .stats import Values, differences, interval
from .tables import Experiment, load_experiment

# Each case of a claim has one of these outcomes, or is not tested. The verdict on a claim can also be mixed.
CONFIRMED, CONTRADICTED, UNDECIDED = "confirmed", "contradicted", "undecided"
MIXED, NOT_TESTED = "mixed", "not tested"
# The scales that claims are judged at; the scale of the tests says nothing about them. Of `small` and its beginning,
# `short`, the first with a verdict counts.
SCALES = (("paper",), ("small", "short"))


@dataclass(frozen=True)
class Case:
    """
    A case of a claim, such as one N.

    Args:
        name (`str`): What is compared.
        values (`dict[int, float]`): The figure by seed, usually a difference.
    """

    name: str
    values: Values


@dataclass(frozen=True)
class Claim:
    """
    A claim of the paper.

    Args:
        table (`str`): Name of the table with the claim.
        content (`dict[str, Any]`): The claim's part of the table's file.
    """

    table: str
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        return self.content["kind"]

    def cases(self, experiment: Experiment, results: Results) -> list[Case]:
        """Return the cases with figures."""
        kinds = {
            "difference": self._differences,
            "mixed": self._differences,
            "best λ": self._best_lambdas,
            "gradient diversity": self._diversities,
            "smaller dataset": self._smaller_datasets,
        }
        return [case for case in kinds[self.kind](experiment, results) if case.values]

    def _differences(self, experiment: Experiment, results: Results) -> Iterable[Case]:
        split = self.content.get("split", "test")
        for group in self.content.get("groups", experiment.groups):
            if group not in experiment.groups:
                continue
            for pair in self.content["pairs"]:
                values = [results.values(group, system, split, column) for system, column in (pair["of"], pair["to"])]
                names = " − ".join(f"{experiment.label(system)} ({column})" for system, column in pair.values())
                yield Case(_place(experiment, group) + names, differences(*values))

    def _best_lambdas(self, experiment: Experiment, results: Results) -> Iterable[Case]:
        for group in experiment.groups:
            for system in self.content["of"]:
                best = {record["seed"]: record["best_lambda"] for record in results.of(group, system)}
                values = {seed: value for seed, value in best.items() if value is not None}
                yield Case(_place(experiment, group) + experiment.label(system), values)

    def _diversities(self, experiment: Experiment, results: Results) -> Iterable[Case]:
        """Yield the mean differences of gradient diversity, of all steps in both runs but the first."""
        of, to = self.content["of"], self.content["to"]
        for group in experiment.groups:
            high, low = (diversity_by_step(results, group, system) for system in (of, to))
            by_step = {seed: differences(high[seed], low[seed]) for seed in high.keys() & low.keys()}
            values = {seed: mean([*found.values()][1:]) for seed, found in by_step.items() if len(found) > 1}
            yield Case(f"{_place(experiment, group)}{experiment.label(of)} − {experiment.label(to)}", values)

    def _smaller_datasets(self, experiment: Experiment, results: Results) -> Iterable[Case]:
        """Yield, for pairs of groups, how much greater the relative gain is on the first one, in percent."""
        for pair in self.content["pairs"]:
            gains = []
            for group in pair["groups"]:
                new, old = (
                    results.values(group, system, "test", column) for system, column in (pair["of"], pair["to"])
                )
                gains.append({seed: 100 * (1 - new[seed] / old[seed]) for seed in new.keys() & old.keys()})
            places = [experiment.groups[group]["label"] for group in pair["groups"] if group in experiment.groups]
            yield Case(f"gain in percent, {' − '.join(places)}", differences(*gains))

    def text(self, values: Values) -> str:
        """Return the mean over seeds, and for differences the interval."""
        found = interval([*values.values()])
        return f"{found.mean:.2f}" if self.kind == "best λ" else found.text(3 if "diversity" in self.kind else 2)

    def outcome(self, values: Values) -> str:
        """
        Return what one case says. A difference confirms the claim if its whole interval has the claimed sign, and its
        mean at least the claimed size. It contradicts the claim if its whole interval is below that size. A best λ
        confirms the claim if its whole interval is near the claimed value, and contradicts it if none of it is.
        """
        found = interval([*values.values()])
        if found.low is None:
            return NOT_TESTED
        if self.kind == "best λ":
            low, high = found.low - self.content["value"], found.high - self.content["value"]
            within = self.content["within"] + 1e-9
            if -within <= low and high <= within:
                return CONFIRMED
            return CONTRADICTED if low > within or high < -within else UNDECIDED
        sign = -1 if self.content.get("better") == "lower" else 1
        low, high = sorted((sign * found.low, sign * found.high))
        least = self.content.get("by", 0.0)
        if low > 0 and sign * found.mean >= least:
            return CONFIRMED
        return CONTRADICTED if high < least else UNDECIDED

    def verdict(self, cases: Sequence[Case]) -> str:
        """
        Return the verdict: mixed if one case confirms the claim and another one contradicts it, otherwise what the
        mean of all cases says. The claim that results are mixed is confirmed if they are, and contradicted if all
        cases agree. The best λ of all cases counts on average only.
        """
        cases = [case for case in cases if self.outcome(case.values) != NOT_TESTED]
        outcomes = {self.outcome(case.values) for case in cases}
        if not outcomes:
            return NOT_TESTED
        is_mixed = outcomes >= {CONFIRMED, CONTRADICTED}
        if self.kind == "mixed":
            agree = len(cases) > 1 and len(outcomes) == 1 and UNDECIDED not in outcomes
            return CONFIRMED if is_mixed else CONTRADICTED if agree else UNDECIDED
        if is_mixed and self.kind != "best λ":
            return MIXED
        values = together(cases)
        # Without two common seeds, there is no interval of the mean.
        return self.outcome(values) if len(values) > 1 else outcomes.pop() if len(outcomes) == 1 else UNDECIDED


def together(cases: Sequence[Case]) -> Values:
    """
    Return the mean over cases by seed. Cases with fewer than two seeds are left out, and so are seeds that not all
    others have.
    """
    tested = [case.values for case in cases if len(case.values) > 1]
    seeds = set.intersection(*(set(values) for values in tested)) if tested else ()
    return {seed: mean(values[seed] for values in tested) for seed in sorted(seeds)}


def _place(experiment: Experiment, group: str) -> str:
    return f"{experiment.groups[group]['label']}: " if len(experiment.groups) > 1 else ""


@dataclass(frozen=True)
class Judgement:
    """
    A claim judged at one scale.

    Args:
        claim ([`Claim`]): The claim.
        scale (`str`): The scale, or an empty string without results.
        cases (`Sequence[Case]`): The cases with figures.
    """

    claim: Claim
    scale: str = ""
    cases: Sequence[Case] = ()

    @property
    def verdict(self) -> str:
        return self.claim.verdict(self.cases)

    @property
    def seeds(self) -> str:
        """The number of seeds, or its range over the cases."""
        counts = sorted({len(case.values) for case in self.cases})
        return "–".join(f"{count}" for count in (counts[0], counts[-1])[: len(counts)]) if counts else ""


def judgements(table: str, folder: Path) -> list[Judgement]:
    """
    Judge the claims of a table by the results in `folder`: a judgement per scale with results, or an empty one.
    """
    found = []
    for content in load_experiment(table, "paper").content["claims"]:
        claim = Claim(table, content)
        by_scale = [_first_verdict([_judge(claim, scale, folder) for scale in scales]) for scales in SCALES]
        found += list(filter(None, by_scale)) or [Judgement(claim)]
    return found


def _judge(claim: Claim, scale: str, folder: Path) -> Judgement | None:
    """Return the judgement at a scale; `None` without figures."""
    path = folder / f"{claim.table}-{scale}.json"
    if not path.exists():
        return None
    experiment = load_experiment(claim.table, scale)
    cases = claim.cases(experiment, Results.load(path).of_table(experiment))
    return Judgement(claim, scale, cases) if cases else None


def _first_verdict(judged: list[Judgement | None]) -> Judgement | None:
    """Return the first judgement with a verdict, or the first one without, or `None` if there is none at all."""
    found = list(filter(None, judged))
    return next((one for one in found if one.verdict != NOT_TESTED), found[0] if found else None)
