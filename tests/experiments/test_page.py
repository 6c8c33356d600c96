"""Pages and verdicts from results alone."""

from pathlib import Path

import pytest
from runner.claims import Finding, judge, verdict_rows, write_verdicts
from runner.page import write_page
from runner.results import Results
from runner.tables import load_experiment

from tests.experiments.figures import record


def ptb_results() -> Results:
    """Plain: 100, 102, 104. WDR with λ: 3, 4 and 5 less. Simple: better or worse than plain, by seed."""
    grid = {"test": [[0.0, 101.0], [0.4, 99.0], [0.6, 120.0]], "validation": [[0.0, 1.0], [0.4, 0.5], [0.6, 2.0]]}
    fields = {"lambda": grid, "best_lambda": 0.4, "weights": [0.8, 0.2], "temperature_weight": 1.0}
    records = []
    for seed, gain, change in ((1, 3.0, -1.0), (2, 4.0, 1.0), (3, 5.0, 0.5)):
        plain = 98.0 + 2 * seed
        diversity = [[0, 0.0, 9.0], [5, 1.0, 0.5 + seed / 100], [10, 2.0, 0.7 + seed / 100]]
        higher = [[step, epoch, value + 0.1] for step, epoch, value in diversity]
        records += [
            record("plain", seed, {"without heads": plain}, head_parameters=0, minutes=None),
            record(
                "wdr-4",
                seed,
                {"without heads": plain + 1, "best λ": plain - gain},
                gradient_diversity=higher,
                **fields,
            ),
            record("simple-4", seed, {"without heads": plain + change}, gradient_diversity=diversity, **fields),
        ]
    return Results("ptb", "small", records)


def rows_of(text: str, title: str) -> dict[str, list[str]]:
    """Return the first table after a title by the label of its rows."""
    lines = [line for line in text.split(title, 1)[1].splitlines() if line]
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = cells[1:]
    return rows


def test_page(tmp_path):
    experiment = load_experiment("ptb", "small")
    page = write_page(experiment, ptb_results(), tmp_path).read_text(encoding="utf-8")
    table = rows_of(page, "### Test")
    assert table["plain"] == ["3", "1,100", "", "102.00 ± 2.00", ""]
    assert table["WDR, N = 4"] == ["3", "1,100", "2.0", "103.00 ± 2.00", "98.00 ± 1.00"]
    assert "WDR, N = 2" not in table
    # Deviation 1, t = 4.3027: 4.3027 / √3 = 2.48.
    differences = rows_of(page, "Difference to the plain model")
    assert differences["WDR, N = 4"] == ["3", r"+1.00 \[+1.00, +1.00\]", r"−4.00 \[−6.48, −1.52\]"]
    assert rows_of(page, "### Over λ")["WDR, N = 4"] == ["0.4", "101.00 ± 0.00", "99.00 ± 0.00", "120.00 ± 0.00"]
    assert rows_of(page, "### Fitted weights")["WDR, N = 4"] == ["1.00 ± 0.00", "0.80 ± 0.00", "0.20 ± 0.00"]
    assert rows_of(page, "### Gradient diversity")["WDR, N = 4"] == ["3", "0.720 ± 0.010"]
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "ptb-small-ptb-lambda.png",
        "ptb-small-ptb-gradient-diversity.png",
    }


def test_page_of_one_seed_has_no_intervals(tmp_path):
    results = ptb_results()
    results.records = [record for record in results.records if record["seed"] == 1]
    page = write_page(load_experiment("ptb", "small"), results, tmp_path).read_text(encoding="utf-8")
    assert rows_of(page, "### Test")["plain"][3] == "100.00"
    assert rows_of(page, "Difference to the plain model")["WDR, N = 4"] == ["1", "+1.00", "−3.00"]


def test_the_page_says_if_the_plain_model_had_a_better_epoch(tmp_path):
    results = ptb_results()
    for entry in results.of("ptb", "plain"):
        entry["lowest_validation_perplexity"] = 98.5 if entry["seed"] == 1 else None
    page = write_page(load_experiment("ptb", "small"), results, tmp_path).read_text(encoding="utf-8")
    assert "98.50 instead of 100.00 (seed 1)." in page


def test_page_of_translations(tmp_path):
    test = {"baseline": 30.0, "bleu": 30.5, "p": 0.0312}
    figures = {"without heads": 30.0, "best λ": 30.5}
    results = Results(
        "nmt", "small", [record("wdr", 1, figures, "multi30k-en-de", bootstrap={"chosen ensemble": test})]
    )
    page = write_page(load_experiment("nmt", "small"), results, tmp_path).read_text(encoding="utf-8")
    assert rows_of(page, "### Paired bootstrap")["WDR"] == ["1", "chosen ensemble", "30.50", "30.00", "+0.50", "0.031"]


def verdicts(folder: Path) -> dict[str, list[str]]:
    """Return the verdicts on the claims about Penn Treebank: seeds, findings, verdict and reason by claim."""
    return {row[1]: row[4:] for row in verdict_rows(folder) if row[0] == "ptb"}


def test_verdicts(tmp_path):
    ptb_results().save(tmp_path / "ptb-small.json")
    found = verdicts(tmp_path)
    by_verdict = {claim: row[2] for claim, row in found.items()}
    assert by_verdict["Simple N-gram models beat the plain model, without the ensemble."] == "not confirmed"
    assert by_verdict["The best λ is near 0.4."] == "confirmed"
    assert by_verdict["WDR models keep their gain at λ = 0.6."] == "not confirmed"
    assert by_verdict["WDR models beat simple N-gram models, with the best λ."] == "not tested"
    seeds, finding, verdict, why = found["The ensemble beats the same model without it."]
    assert (seeds, verdict, why) == ("3", "confirmed", "")
    assert finding == "WDR, N = 4 (best λ) − WDR, N = 4 (without heads): −5.00 [−7.48, −2.52]"
    seeds, finding, verdict, why = found["The gradient diversity of WDR is higher than that of simple N-gram models."]
    assert finding == "WDR, N = 4 − simple, N = 4: +0.100 [+0.100, +0.100]" and verdict == "confirmed"
    write_verdicts(tmp_path, tmp_path / "pages" / "verdicts.md")
    assert "not confirmed" in (tmp_path / "pages" / "verdicts.md").read_text(encoding="utf-8")


def test_no_verdict_without_results_or_with_one_seed(tmp_path):
    assert {row[-2] for row in verdict_rows(tmp_path)[1:]} == {"not tested"}
    results = ptb_results()
    results.records = [record for record in results.records if record["seed"] == 1]
    results.save(tmp_path / "ptb-small.json")
    assert {row[2] for row in verdicts(tmp_path).values()} == {"not tested"}


def test_a_shorter_training_is_judged_where_the_longer_one_has_no_verdict(tmp_path):
    claim = "The ensemble beats the same model without it."
    for scale, count, expected in (("short", 3, "short"), ("small", 1, "short"), ("small", 3, "small")):
        records = [record for record in ptb_results().records if record["seed"] <= count]
        Results("ptb", scale, records).save(tmp_path / f"ptb-{scale}.json")
        (row,) = [row for row in verdict_rows(tmp_path) if row[:2] == ["ptb", claim]]
        assert row[3] == expected and row[6] == "confirmed"


def test_a_gain_below_the_claimed_one_does_not_confirm_it(tmp_path):
    claim = "WDR with the ensemble translates better than the plain model, by 0.7 to 1.5 BLEU."
    for gain, verdict in ((0.5, "not confirmed"), (0.8, "confirmed")):
        records = []
        for seed in (1, 2):
            records.append(record("plain", seed, {"without heads": 30.0 + seed}, "multi30k-en-de"))
            figures = {"without heads": 0.0, "best λ": 30.0 + seed + gain + seed / 1000}
            records.append(record("wdr", seed, figures, "multi30k-en-de"))
        Results("nmt", "small", records).save(tmp_path / "nmt-small.json")
        assert [row[6] for row in verdict_rows(tmp_path) if row[1] == claim] == [verdict]


def test_the_gain_on_a_smaller_dataset(tmp_path):
    records = [
        record("wdr", seed, {"without heads": 100.0, "best λ": best + seed / 10}, group)
        for seed in (1, 2)
        for group, best in (("tt-ptb", 90.0), ("tt-wikitext2", 95.0), ("rf-ptb", 99.0), ("rf-wikitext2", 97.0))
    ]
    Results("primary", "paper", records).save(tmp_path / "primary-paper.json")
    (row,) = [row for row in verdict_rows(tmp_path) if "smaller dataset" in row[1]]
    assert row[3:5] == ["paper", "2"] and row[6] == "mixed"
    assert "Penn Treebank, N = 2 − TT, WikiText-2, N = 4: +5.00" in row[5]


@pytest.mark.parametrize(
    "holds, kind, verdict",
    [
        ([True, True], "difference", "confirmed"),
        ([False, False], "difference", "not confirmed"),
        ([True, False], "difference", "mixed"),
        ([True, None], "difference", "confirmed"),
        ([None], "difference", "not tested"),
        ([True, False], "mixed", "confirmed"),
        ([False, False], "mixed", "not confirmed"),
        ([], "mixed", "not tested"),
    ],
)
def test_judge(holds, kind, verdict):
    assert judge([Finding("", value, 2) for value in holds], kind) == verdict
