"""Figures in README and docs are those of the results files."""

import re

import pytest
from runner.page import write_page
from runner.results import Results
from runner.stats import paired, summarize
from runner.tables import load_experiment
from runner.verdicts_page import write_verdicts

from tests.support.processes import ROOT

RESULTS, PAGES = ROOT / "experiments" / "results", ROOT / "docs" / "results"
FILES = sorted(path.stem for path in RESULTS.glob("*.json"))


def results_of(name: str) -> Results:
    return Results.load(RESULTS / f"{name}.json")


@pytest.mark.parametrize("name", FILES)
def test_pages(name, tmp_path):
    """A page is what `run.py --report` writes now."""
    table, scale = name.split("-")
    page = write_page(load_experiment(table, scale), results_of(name), tmp_path)
    assert page.read_text(encoding="utf-8") == (PAGES / page.name).read_text(encoding="utf-8")
    for image in tmp_path.glob("*.png"):
        assert (PAGES / image.name).exists()


def test_verdicts(tmp_path):
    """The page of the paper's claims is what `verdicts.py` writes now."""
    page = tmp_path / "verdicts.md"
    write_verdicts(RESULTS, page)
    assert page.read_text(encoding="utf-8") == (PAGES / page.name).read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return a section of the page of all results."""
    return (PAGES / "index.md").read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def row_of(text: str, beginning: str) -> list[str]:
    """Return the cells of the table row that begins with these words, without emphasis."""
    (line,) = [line for line in text.splitlines() if line.replace("*", "").startswith(f"| {beginning}")]
    return [cell.strip() for cell in line.replace("*", "").strip("|").split("|")]


def figures(name: str, group: str, system: str, column: str) -> tuple[str, str]:
    """Return a mean over seeds on the test set, and its difference to the plain model, as documents give them."""
    results = results_of(name)
    values = results.values(group, system, "test", column)
    difference = paired(values, results.baseline(group, "test", column))
    return summarize([*values.values()]).text(1), difference.text(1)


LANGUAGE_MODELS = {
    "Penn Treebank, small": [("ptb-short", "ptb"), ("ptb-small", "ptb")],
    "Tensorized Transformer and Reformer, small": [("primary-small", "tt-ptb"), ("primary-small", "rf-ptb")],
}
# The rows by the beginning of their label. Only the first table has all.
ROWS = {
    "plain model": ("plain", "without heads"),
    "with the best temperature": ("free-wdr-4", "temperature"),
    "free heads, best λ": ("free-wdr-4", "best λ"),
    "free heads, fitted weights": ("free-wdr-4", "fitted"),
    "free simple heads, fitted weights": ("free-simple-4", "fitted"),
    "free heads on a third": ("free-wdr-4-third", "fitted"),
    "free heads on an eighth": ("free-wdr-4-eighth", "fitted"),
    "the paper's recipe, λ = 0": ("wdr-4", "without heads"),
    "the paper's recipe, best λ": ("wdr-4", "best λ"),
    "the paper's recipe, fitted weights": ("wdr-4", "fitted"),
    "control: the same heads": ("present", "fitted"),
    "control: a plain model": ("wide", "without heads"),
}


@pytest.mark.parametrize("title", LANGUAGE_MODELS)
def test_tables_of_language_models(title):
    text = section(title)
    rows = [row for row in ROWS if f"| {row}" in text.replace("*", "")]
    assert len(rows) == (len(ROWS) if title.startswith("Penn") else 5)
    for row in rows:
        cells = row_of(text, row)[1:]
        for (name, group), mean, difference in zip(LANGUAGE_MODELS[title], cells[::2], cells[1::2], strict=True):
            system, column = ROWS[row]
            system = system if group == "ptb" else system.removesuffix("-4")
            if mean or group != "ptb":
                expected = figures(name, group, system, column)
                assert (mean, difference) == (expected[0], "" if system == "plain" else expected[1])


@pytest.mark.parametrize(
    ("row", "system", "column"),
    [
        ("plain model", "plain", "without heads"),
        ("bag-of-words loss", "bow", "without heads"),
        ("free heads, fitted weights", "free-wdr", "fitted"),
        ("the paper's recipe, λ = 0", "wdr", "without heads"),
        ("the paper's recipe, fitted weights", "wdr", "fitted"),
    ],
)
def test_table_of_translations(row, system, column):
    cells = row_of(section("Multi30k, small"), row)[1:]
    for name, cell in zip(("nmt-short", "nmt-small"), cells, strict=True):
        values = [results_of(name).values("multi30k-en-de", system, split, column) for split in ("test", "validation")]
        if not values[0]:
            assert not cell
            continue
        test, validation = (summarize([*found.values()]).text() for found in values)
        assert cell == f"{test} ({validation})"


def test_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for row, name, group, system, column in (
        ("Perplexity, Penn Treebank", "ptb-small", "ptb", "free-wdr-4", "fitted"),
        ("the same by the paper's recipe", "ptb-small", "ptb", "wdr-4", "best λ"),
        ("Translation, Multi30k", "nmt-small", "multi30k-en-de", "free-wdr", "temperature"),
    ):
        _, plain, ours, _ = row_of(text, row)
        assert plain == figures(name, group, "plain", "without heads")[0].split(" ")[0]
        mean, difference = figures(name, group, system, column)
        found, compared = re.fullmatch(r"(\S+)(?: \((.*)\))?", ours).groups()
        assert found == mean.split(" ")[0] and compared in (None, difference)
