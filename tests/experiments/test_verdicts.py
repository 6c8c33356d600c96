"""Verdicts on the paper's claims from results alone."""

from pathlib import Path

import pytest
from runner.claims import Case, Claim, Judgement, judgements
from runner.results import Results
from runner.tables import load_experiment

from tests.experiments.figures import ptb_results, record


def judged(folder: Path, table: str = "ptb") -> dict[str, Judgement]:
    return {one.claim.content["claim"]: one for one in judgements(table, folder)}


def test_verdicts(tmp_path):
    ptb_results().save(tmp_path / "ptb-small.json")
    found = judged(tmp_path)
    expected = {
        "Simple N-gram models beat the plain model, without the ensemble.": "undecided",
        "WDR models beat the plain model, without the ensemble.": "contradicted",
        "The ensemble beats the same model without it.": "confirmed",
        "The best λ is near 0.4.": "confirmed",
        "WDR models keep their gain at λ = 0.6.": "contradicted",
        "WDR models beat simple N-gram models, with the best λ.": "not tested",
        "The gradient diversity of WDR is higher than that of simple N-gram models.": "confirmed",
    }
    assert {claim: found[claim].verdict for claim in expected} == expected
    ensemble = found["The ensemble beats the same model without it."]
    (case,) = ensemble.cases
    assert case.name == "WDR, N = 4 (best λ) − WDR, N = 4 (without heads)"
    assert ensemble.claim.text(case.values) == "−5.00 [−7.48, −2.52]"
    assert (ensemble.scale, ensemble.seeds) == ("small", "3")


def test_no_verdict_without_results_or_with_one_seed(tmp_path):
    assert {one.verdict for one in judged(tmp_path).values()} == {"not tested"}
    results = ptb_results()
    results.records = [record for record in results.records if record["seed"] == 1]
    results.save(tmp_path / "ptb-small.json")
    found = judged(tmp_path)
    assert {one.verdict for one in found.values()} == {"not tested"}
    assert any(one.cases for one in found.values())


def test_a_shorter_training_is_judged_where_the_longer_one_has_no_verdict(tmp_path):
    for scale, count, expected in (("short", 3, "short"), ("small", 1, "short"), ("small", 3, "small")):
        records = [record for record in ptb_results(scale).records if record["seed"] <= count]
        Results("ptb", scale, records).save(tmp_path / f"ptb-{scale}.json")
        one = judged(tmp_path)["The ensemble beats the same model without it."]
        assert one.scale == expected and one.verdict == "confirmed"


@pytest.mark.parametrize(
    "gains, verdict",
    [((0.8, 0.801), "confirmed"), ((0.5, 0.501), "contradicted"), ((0.0, 1.6), "undecided")],
)
def test_a_gain_below_the_claimed_one_contradicts_it(gains, verdict, tmp_path):
    records = []
    for seed, gain in enumerate(gains, 1):
        place = ("multi30k-en-de", ("nmt", "small"))
        records.append(record("plain", seed, {"without heads": 30.0 + seed}, *place))
        records.append(record("wdr", seed, {"without heads": 0.0, "best λ": 30.0 + seed + gain}, *place))
    Results("nmt", "small", records).save(tmp_path / "nmt-small.json")
    claim = "WDR with the ensemble translates better than the plain model, by 0.7 to 1.5 BLEU."
    assert judged(tmp_path, "nmt")[claim].verdict == verdict


def test_the_gain_on_a_smaller_dataset():
    groups = {"tt-ptb": 90.0, "tt-wikitext2": 95.0, "rf-ptb": 99.0, "rf-wikitext2": 97.0}
    records = [
        record("wdr", seed, {"without heads": 100.0, "best λ": best + seed / 10}, group, ("primary", "paper"))
        for seed in (1, 2)
        for group, best in groups.items()
    ]
    columns = {"of": ["wdr", "best λ"], "to": ["wdr", "without heads"]}
    pairs = [{"groups": [f"{model}-ptb", f"{model}-wikitext2"], **columns} for model in ("tt", "rf")]
    claim = Claim("primary", {"kind": "smaller dataset", "pairs": [*pairs, {"groups": ["tt-ptb", "none"], **columns}]})
    cases = claim.cases(load_experiment("primary", "paper"), Results("primary", "paper", records))
    assert len(cases) == 2 and cases[0].name.endswith("TT, Penn Treebank, N = 2 − TT, WikiText-2, N = 4")
    assert claim.text(cases[0].values).startswith("+5.00")
    # One case confirms the claim, the other one contradicts it.
    assert claim.verdict(cases) == "mixed"


LOWER, HIGHER, OPEN = {1: -2.0, 2: -2.1}, {1: 2.0, 2: 2.1}, {1: -1.0, 2: 1.0}


@pytest.mark.parametrize(
    "kind, cases, verdict",
    [
        ("difference", [LOWER, LOWER], "confirmed"),
        ("difference", [HIGHER, HIGHER], "contradicted"),
        ("difference", [LOWER, HIGHER], "mixed"),
        ("difference", [OPEN], "undecided"),
        # Each case alone is undecided; together they are not, as their seeds' errors cancel.
        ("difference", [{1: -1.0, 2: -9.0}, {1: -9.0, 2: -1.1}], "confirmed"),
        ("difference", [LOWER, {1: 5.0}], "confirmed"),
        ("difference", [{1: -5.0}], "not tested"),
        ("mixed", [LOWER, HIGHER], "confirmed"),
        ("mixed", [LOWER, OPEN], "undecided"),
        ("mixed", [LOWER, LOWER], "contradicted"),
        ("mixed", [LOWER], "undecided"),
        ("mixed", [LOWER, {1: -2.0}], "undecided"),
        # Without two common seeds, there is no mean of both.
        ("difference", [{1: -2.0, 2: -2.1}, {3: -2.0, 4: -2.1}], "confirmed"),
        ("difference", [{1: -2.0, 2: -2.1}, {2: -1.0, 3: 1.0}], "undecided"),
        # On average, the paper's own values.
        ("best λ", [{1: 0.2, 2: 0.2}, {1: 0.4, 2: 0.4}, {1: 0.6, 2: 0.6}], "confirmed"),
        ("best λ", [{1: 0.2, 2: 0.2}], "contradicted"),
        ("best λ", [{1: 0.1, 2: 0.7}], "undecided"),
        ("mixed", [], "not tested"),
    ],
)
def test_verdict_of_several_cases(kind, cases, verdict):
    claim = Claim("ptb", {"kind": kind, "better": "lower", "value": 0.4, "within": 0.1})
    assert claim.verdict([Case("", values) for values in cases]) == verdict


def test_runs_that_the_table_no_longer_has_do_not_count(tmp_path):
    results = ptb_results()
    for one in results.records:
        if one["system"] == "wdr-4":
            one["options"] = {**one["options"], "learning_rate": 0.5}
    results.save(tmp_path / "ptb-small.json")
    found = judged(tmp_path)
    assert found["The ensemble beats the same model without it."].verdict == "not tested"
    assert found["Simple N-gram models beat the plain model, without the ensemble."].verdict == "undecided"
