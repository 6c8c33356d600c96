"""`ngram-wdr report`: a self-contained page with the results of finished runs."""

import math
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from ngram_wdr_hf.analysis import traced_text
from ngram_wdr_hf.analysis.__main__ import main
from ngram_wdr_hf.analysis.trained_run import load_run
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.training import clm, mlm, nmt
from tests.support.errors import raises_naming
from tests.support.scripts import as_arguments, metrics_of

SECTIONS = [
    "Results",
    "Training",
    "Predictions of the heads",
    "Generated text by source",
    "Where the ensemble helps",
    "Map of the targets",
]
QUICK = {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 6, "logging_steps": 1, "warmup_steps": 0}
QUICK |= {"disable_tqdm": "true", "learning_rate": 0.02, "ngram_size": 3, "per_device_train_batch_size": 4}


def tables(page: str, title: str) -> list[list[list[str]]]:
    """Return the cells of the tables in a section."""
    section = page.split(f"<h2>{title}</h2>")[1].split("</section>")[0]
    rows = [re.findall("<tr>(.*?)</tr>", table, re.S) for table in re.findall("<table>(.*?)</table>", section, re.S)]
    return [[[unescape(cell) for cell in re.findall("<t[hd]>(.*?)</t[hd]>", row)] for row in table] for table in rows]


@pytest.fixture(scope="module")
def compared(files, checkpoint, tmp_path_factory) -> Path:
    """The run folder of three small language models after a few steps."""
    folder = tmp_path_factory.mktemp("compared") / "run"
    options = QUICK | {"model_name_or_path": checkpoint, "output_dir": folder, "block_size": 16, "sample_tokens": 0}
    clm.main([*files, *as_arguments(**options, lambda_grid="0 0.2 0.5"), "--compare"])
    return folder


def test_language_models_side_by_side(compared, tmp_path):
    main([str(compared), "--split", "test", "--output", str(tmp_path / "report.html")])
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall("<h2>(.*)</h2>", page) == SECTIONS and "Not available" not in page
    runs = {"wdr N=3": compared, "plain": compared / "plain", "simple N=3": compared / "simple"}
    _, _, (head, *rows) = tables(page, "Results")
    assert len(rows) == 3 * 2 * 2
    for name, split, metric, *cells in rows:
        found = metrics_of(runs[name])["splits"][split]["ensembles"]
        metric = metric.replace(" ", "_")
        assert cells == [f"{found[key][metric]:,.4g}" if key in found else "" for key in head[3:]]
    # The figures of the heads and the gain are those of the run's own evaluation.
    (heads,), (gains,) = tables(page, SECTIONS[2]), tables(page, SECTIONS[4])
    assert [row[0] for row in gains[1:]] == ["wdr N=3", "simple N=3"]
    for name, folder in runs.items():
        test = metrics_of(folder)["splits"]["test"]
        losses = [test[key] for key in ("next_word_loss", "head_1_loss", "head_2_loss") if key in test]
        assert [row[2] for row in heads if row[0] == name] == [f"{math.exp(loss):,.4g}" for loss in losses]
        for row in (row for row in gains[1:] if row[0] == name):
            plain, fitted = (test["ensembles"][key]["token_perplexity"] for key in ("without heads", "fitted"))
            assert float(row[2]) == pytest.approx(math.log(plain / fitted), rel=1e-3)
    run = load_run(compared, "test")
    assert traced_text(run.model, run.tokenizer, run.prompts, draft_threshold=0.0).fragment() in page


def test_text_of_a_run(compared):
    run, cut = load_run(compared), load_run(compared, max_tokens=60)
    assert run.text.num_targets == metrics_of(compared)["splits"]["validation"]["num_tokens"]
    assert cut.text.num_targets == 60 and cut.documents[0].tolist() == run.documents[0][:60].tolist()
    counts = np.bincount(np.concatenate(run.training_ids))
    train = Path(run.result.settings["train_file"][0]).read_text(encoding="utf-8")
    assert counts[run.tokenizer("cat").input_ids[0]] == train.split().count("cat")


@pytest.mark.parametrize("task", ["nmt", "mlm"])
def test_other_tasks(task, pairs, files, tmp_path):
    options = QUICK | {"output_dir": tmp_path, "vocab_size": 300}
    if task == "nmt":
        options |= {"per_device_train_batch_size": 1, "num_beams": 1, "batch_tokens": 256}
        nmt.main([*pairs, *as_arguments(**options)])
    else:
        mlm.main([*files, *as_arguments(**options, block_size=16)])
    main([str(tmp_path), "--max_tokens", "10000"])
    page = (tmp_path / "analysis.html").read_text(encoding="utf-8")
    (heads,), found = tables(page, SECTIONS[2]), metrics_of(tmp_path)["splits"]["validation"]
    names = ("next_word_loss" if task == "nmt" else "masked_word_loss", "head_1_loss", "head_2_loss")
    assert [row[2] for row in heads[1:]] == [f"{math.exp(found[name]):,.4g}" for name in names]
    metrics = {row[2] for row in tables(page, "Results")[2][1:]}
    assert metrics == ({"bleu", "chrf", "token perplexity"} if task == "nmt" else {"perplexity", "accuracy"})
    assert ("Where the ensemble helps" in page) == (task == "nmt") and "Not available" not in page


def test_bad_input(tmp_path):
    with raises_naming(InputError, str(tmp_path), "metrics.json"):
        main([str(tmp_path)])
