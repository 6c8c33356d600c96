"""`python -m ngram_wdr_hf.analysis`: a self-contained page with the results of the run."""

import itertools
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from ngram_wdr_hf.analysis import gradient_diversity, report, traced_text
from ngram_wdr_hf.analysis.__main__ import main
from ngram_wdr_hf.analysis.trained_run import load_run, load_text
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training.common.command_line import run_script
from ngram_wdr_hf.training.mlm.arguments import parse_mlm_arguments
from ngram_wdr_hf.training.mlm.run import run_mlm
from tests.support import clm_runs, nmt_runs
from tests.support.errors import assert_names, raises_naming
from tests.support.scripts import metrics_of

ALL = 10_000
VOID = ("meta", "img", "input", "br", "hr", "link", "path", "circle", "line", "rect")


class Page(HTMLParser):
    """A parsed page: its pictures, headings, tables (by section) and text."""

    def __init__(self, path: Path):
        super().__init__()
        self.sources, self.open = [], []
        self.titles, self.tables, self.texts = [], {}, {}
        self.feed(path.read_text(encoding="utf-8"))
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        self.sources += [attributes["src"]] if "src" in attributes else []
        if tag == "table":
            self.tables.setdefault(self.titles[-1], []).append([])
        if tag == "tr":
            self.tables[self.titles[-1]][-1].append([])
        if tag in ("td", "th"):
            self.tables[self.titles[-1]][-1][-1].append("")
        if tag == "h2":
            self.titles.append("")

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "h2" in self.open:
            self.titles[-1] += data
        elif "td" in self.open or "th" in self.open:
            self.tables[self.titles[-1]][-1][-1][-1] += data
        elif "script" not in self.open and "style" not in self.open:
            title = self.titles[-1] if self.titles else ""
            self.texts[title] = self.texts.get(title, "") + data


def write(folder: Path, path: Path, **options) -> Page:
    report.write_report(folder, path, **{"max_tokens": ALL, "notify": lambda message: None, **options})
    return Page(path)


@pytest.fixture(scope="module")
def compared(files, checkpoint, tmp_path_factory) -> Path:
    """The run folder of three small language models after a few steps."""
    folder = tmp_path_factory.mktemp("compared") / "run"
    options = {"max_steps": 12, "eval_steps": 6, "learning_rate": 0.02, "ngram_size": 3, "gradient_diversity_steps": 6}
    options |= {"model_name_or_path": checkpoint, "output_dir": folder, "lambda_grid": "0 0.2 0.5", "sample_tokens": 0}
    clm_runs.run(*files, *clm_runs.QUICK, *nmt_runs.as_arguments(**options), "--compare")
    return folder


@pytest.fixture
def keep_sections(monkeypatch):
    """Return a function that reduces the report to some sections."""

    def keep(*titles: str) -> None:
        monkeypatch.setattr(report, "SECTIONS", [section for section in report.SECTIONS if section[0] in titles])

    return keep


@pytest.fixture(scope="module")
def page_of_comparison(compared, tmp_path_factory) -> Page:
    return write(compared, tmp_path_factory.mktemp("page") / "report.html", split="test")


def test_sections_of_a_language_model(page_of_comparison):
    assert page_of_comparison.titles == [title for title, *_ in report.SECTIONS]
    # λ, training, heads, drafts, two gains, gradients, the map.
    assert len(page_of_comparison.sources) == 8
    assert not any("Not available" in text for text in page_of_comparison.texts.values())


def shown(figures: dict[str, float], columns: list[str]) -> list[str]:
    return [f"{figures[name]:,.4g}" if name in figures else "" for name in columns]


def figures_of(metrics: dict, metric: str) -> dict[str, float]:
    """Return a metric by λ and by kind of ensemble."""
    by_lambda = {f"λ={value:g}": figure for value, figure in zip(metrics["lambda"], metrics[metric], strict=True)}
    return by_lambda | {name: figures[metric] for name, figures in metrics["ensembles"].items() if metric in figures}


def test_results_are_those_of_the_run(page_of_comparison, compared):
    ((head, *rows),) = page_of_comparison.tables["Results"]
    assert head[3:6] == ["λ=0", "λ=0.2", "λ=0.5"]
    assert set(head[6:]) == {"without heads", "temperature", "best λ", "fitted"}
    runs = {"wdr N=3": compared, "plain": compared / "plain", "simple N=3": compared / "simple"}
    metrics = ("perplexity by token", "perplexity")
    assert [tuple(row[:3]) for row in rows] == list(itertools.product(runs, ("validation", "test"), metrics))
    for name, split, label, *cells in rows:
        metric = "token_perplexity" if "token" in label else label
        assert cells == shown(figures_of(metrics_of(runs[name])["splits"][split], metric), head[3:])


def test_the_heads_figures_are_those_of_the_evaluation(page_of_comparison, compared):
    (found,) = page_of_comparison.tables["Predictions of the heads"]
    for folder, name in ((compared, "wdr N=3"), (compared / "plain", "plain"), (compared / "simple", "simple N=3")):
        losses = metrics_of(folder)["splits"]["test"]
        names = [key for key in ("next_word_loss", "head_1_loss", "head_2_loss") if key in losses]
        rows = [row for row in found if row[0] == name]
        assert [row[1] for row in rows] == ["next token", "head 1", "head 2"][: len(names)]
        assert [row[2] for row in rows] == [f"{math.exp(losses[key]):,.1f}" for key in names]
        assert rows[0][4] == f"{losses['num_tokens']:,}"


def test_the_gains_are_those_of_the_evaluation(page_of_comparison, compared):
    (found,) = page_of_comparison.tables["Where the ensemble helps"]
    (row,) = [row for row in found if row[0] == "wdr N=3" and row[2] == "all"]
    metrics = metrics_of(compared)
    test = metrics["splits"]["test"]
    plain, fitted = (math.log(test["ensembles"][name]["token_perplexity"]) for name in ("without heads", "fitted"))
    assert float(row[3]) == pytest.approx(plain - fitted, abs=1e-4)
    assert row[5] == f"{test['num_tokens']:,}"
    # The bins of each group contain all tokens.
    for group in ("position", "count"):
        counts = [int(row[5].replace(",", "")) for row in found if row[0] == "wdr N=3" and row[2].startswith(group)]
        assert sum(counts) == test["num_tokens"]


def test_generated_text_by_source(compared, tmp_path, keep_sections):
    """Every model with heads continues pieces of the text; the plain one has no section."""
    keep_sections("Generated text by source")
    found = write(compared, tmp_path / "report.html", new_tokens=5)
    text, tables = found.texts["Generated text by source"], found.tables["Generated text by source"]
    assert "simple N=3" in text and "plain" not in text
    assert [table[0] for table in tables] == [["source", "tokens", "share", "drafts", "accepted"]] * 2
    by_source = [[int(row[1]) for row in table[1:]] for table in tables]
    # Up to five tokens after each of three prompts, less where a row ends.
    assert [f"{sum(counts)}" for counts in by_source] == re.findall(r"(\d+) tokens, \d\.\d\d per row", text)
    assert all(3 <= sum(counts) <= 15 for counts in by_source)
    run = load_run(compared)
    prompts = [prompt["input_ids"][0] for prompt in load_text(run, "validation", ALL).prompts[:3]]
    expected = traced_text(run.model, run.tokenizer, prompts, 5, draft_threshold=0.0).fragment()
    assert expected in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_long_text_is_cut(compared, tmp_path, keep_sections):
    keep_sections("Predictions of the heads")
    found = write(compared, tmp_path / "report.html", max_tokens=60)
    assert "60 tokens" in found.texts[""] and "validation" in found.texts[""]
    # The start token is not counted.
    assert found.tables["Predictions of the heads"][0][1][4] == "60"


def without_log_of_gradients(run: Path, folder: Path, **settings) -> Path:
    """Copy a run without logged gradient diversity, with changed settings."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
    for path in folder.rglob("trainer_state.json"):
        state = json.loads(path.read_text(encoding="utf-8"))
        state["log_history"] = [entry for entry in state["log_history"] if "gradient_diversity" not in entry]
        path.write_text(json.dumps(state), encoding="utf-8")
    for path in folder.rglob("run.yaml"):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        path.write_text(yaml.safe_dump({**found, **settings}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("train_mode", "weights"), [("full", "all"), ("heads", "heads")])
def test_gradient_diversity_of_the_trained_model(train_mode, weights, compared, tmp_path, keep_sections):
    """If training did not measure it, the report does, on the trained weights."""
    keep_sections("Gradient diversity")
    folder = without_log_of_gradients(compared, tmp_path / "run", train_mode=train_mode)
    found = write(folder, tmp_path / "report.html")
    rows = {row[0]: row[1:] for row in found.tables["Gradient diversity"][0][1:]}
    assert list(rows) == [name for name in ("wdr N=3", "plain", "simple N=3") if train_mode == "full" or "N" in name]
    text = load_text(load_run(folder), "validation", ALL)
    for child, name in ((folder, "wdr N=3"), (folder / "simple", "simple N=3")):
        model = load_run(child).model
        expected = gradient_diversity(model, text.batch, None if train_mode == "full" else ["ngram_heads"])
        assert rows[name] == [weights, f"{expected:.4f}", "16"]


def test_translation(pairs, marian, tmp_path, keep_sections):
    folder = tmp_path / "run"
    nmt_runs.run("--model_name_or_path", marian, *pairs, "--output_dir", str(folder), *nmt_runs.QUICK)
    keep_sections(
        "Results",
        "Predictions of the heads",
        "Acceptance rate of drafts",
        "Generated text by source",
        "Where the ensemble helps",
        "Gradient diversity",
    )
    found = write(folder, tmp_path / "report.html")
    metrics = metrics_of(folder)["splits"]["validation"]
    ((head, *rows),) = found.tables["Results"]
    by_metric = {row[2]: row[3:] for row in rows if row[1] == "validation"}
    for label, metric in (("BLEU", "bleu"), ("chrF", "chrf"), ("perplexity by token", "token_perplexity")):
        assert by_metric[label] == shown(figures_of(metrics, metric), head[3:])
    (heads,) = found.tables["Predictions of the heads"]
    assert [row[2] for row in heads[1:]] == [
        f"{math.exp(metrics[name]):,.1f}" for name in ("next_word_loss", "head_1_loss", "head_2_loss", "head_3_loss")
    ]
    assert found.tables["Generated text by source"][0][1][0] == "model"

    run = load_run(folder)
    text = load_text(run, "validation", max_tokens=50)
    assert 0 < text.num_tokens <= 50
    assert len(text.prompts) == len(text.documents)
    assert len(load_text(run, "validation", max_tokens=1).documents) == 1


def test_masked_language_model(files, tmp_path):
    """Without drafts and ensemble, their sections are left out."""
    folder = tmp_path / "run"
    options = ["--output_dir", str(folder), "--vocab_size", "300", "--num_examples", "0"]
    shared = [option for option in clm_runs.QUICK if option not in ("--sample_tokens", "8")]
    run_mlm(parse_mlm_arguments([*files, *options, *shared], "train_mlm.py"))
    found = write(folder, tmp_path / "report.html", max_tokens=100)
    left_out = ("Acceptance rate of drafts", "Generated text by source", "Where the ensemble helps")
    assert found.titles == [title for title, *_ in report.SECTIONS if title not in left_out]
    assert not any("Not available" in text for text in found.texts.values())
    with raises_naming(InputError, "`--prompt`", str(folder), "leave it out"):
        write(folder, tmp_path / "report.html", prompt="a b")
    metrics = metrics_of(folder)["splits"]
    ((_, *rows),) = found.tables["Results"]
    for _, split, metric, cell in rows:
        assert cell == f"{metrics[split][metric]:,.4g}"
    assert {row[2] for row in rows} == {"perplexity", "accuracy"}
    validation = metrics["validation"]
    (levels,) = found.tables["Predictions of the heads"]
    names = ("masked_word_loss", "head_1_loss", "head_2_loss")
    assert [row[1] for row in levels[1:]] == ["masked word", "1-level WDR", "2-level WDR"]
    assert [row[2] for row in levels[1:]] == [f"{math.exp(validation[name]):,.1f}" for name in names]
    assert [row[4] for row in levels[1:]] == [f"{count:,}" for count in validation["head_counts"]]


def test_the_command(compared, tmp_path, capsys, keep_sections):
    keep_sections("The model", "Predictions of the heads", "Generated text by source", "Gradient diversity")
    folder = tmp_path / "run"
    shutil.copytree(compared, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
    (folder / "plain" / "metrics.json").unlink()
    assert run_script(main, [str(folder), "--max_tokens", "100", "--prompt", "a b", "--new_tokens", "3"]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"not finished.*{re.escape(str(folder / 'plain'))}\n", printed)
    assert re.search(r"\d s  Gradient diversity", printed)
    assert str(folder / "analysis.html") in printed
    found = Page(folder / "analysis.html")
    assert [row[0] for row in found.tables["The model"][0][1:]] == ["wdr N=3", "simple N=3"]
    assert re.search(r"\b[1-3] tokens, ", found.texts["Generated text by source"])


def test_bad_input(compared, tmp_path, capsys):
    def error_of(*arguments: str) -> str:
        assert run_script(main, list(arguments)) == 2
        printed = capsys.readouterr().err
        assert printed.startswith("error: ") and printed.count("\n") == 1
        return printed

    assert_names(error_of(str(tmp_path / "nowhere")), str(tmp_path / "nowhere"), "`run.yaml`")
    assert_names(error_of(str(tmp_path)), str(tmp_path), "`run.yaml`")
    assert_names(error_of(str(compared), "--max_tokens", "1"), "--max_tokens", "1")
    assert_names(error_of(str(compared), "--new_tokens", "0"), "--new_tokens", "0")
    assert_names(error_of(str(compared), "--prompt", ""), "--prompt")
    assert_names(error_of(str(compared), "--prompt", " \t"), "prompt has no tokens")
    assert_names(error_of(str(compared), "--prompt", "a " * 16), "prompt has 16 tokens", "15")
    for output in (tmp_path / "no" / "a.html", tmp_path):
        assert_names(error_of(str(compared), "--output", str(output)), "--output", str(output))

    folder = tmp_path / "run"
    shutil.copytree(compared, folder, ignore=shutil.ignore_patterns("plain", "simple", "checkpoint-*"))
    settings = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
    moved = {**settings, "train_file": ["gone.txt"]}
    (folder / "run.yaml").write_text(yaml.safe_dump(moved), encoding="utf-8")
    assert_names(error_of(str(folder)), str(folder), "gone.txt")
    (folder / "run.yaml").write_text(yaml.safe_dump({"task": ["sst2"]}), encoding="utf-8")
    assert_names(error_of(str(folder)), str(folder), "`ngram-wdr glue`")
    (folder / "run.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    metrics = metrics_of(folder)
    del metrics["splits"]["test"]
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    assert_names(error_of(str(folder), "--split", "test"), "--split test", "validation")
    (folder / "metrics.json").write_text("{", encoding="utf-8")
    assert_names(error_of(str(folder)), str(folder), "damaged")
    (folder / "metrics.json").unlink()
    assert_names(error_of(str(folder)), str(folder), "not finished")
    (folder / "metrics.json").write_text("{}", encoding="utf-8")
    (folder / "trainer_state.json").unlink()
    assert_names(error_of(str(folder)), str(folder), "not finished")
