"""`ngram-wdr clm --do_train false`: evaluations of a saved model."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.clm_runs import QUICK, run
from tests.support.scripts import as_arguments, contents


def test_evaluation_fits_another_text(finished_clm, texts, tmp_path):
    """`--ensemble fitted` without training fits the weights to the given validation text."""
    evaluate = ["--do_train", "false", "--model_name_or_path", str(finished_clm.folder), "--output_dir", str(tmp_path)]
    evaluate += ["--validation_file", texts["test"], "--disable_tqdm", "true"]
    (result,) = run(*evaluate, "--ensemble", "fitted")
    saved = finished_clm.result.ensemble
    assert result.ensemble == tuple(result.fit.weights) != saved
    assert result.scores["validation"].nll(result.ensemble) < result.scores["validation"].nll(saved)
    (result,) = run(*evaluate)
    assert result.fit is None and result.scores["validation"].ensembles[-1] == saved


def test_evaluation_only(finished_clm, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, trained = tmp_path / "run", finished_clm.result
    shutil.copytree(finished_clm.folder, folder)
    before = contents(tmp_path)
    (result,) = run("--do_train", "false", "--model_name_or_path", str(folder), "--test_file", texts["test"])
    assert result.ensemble == trained.ensemble and result.fit is None
    for ensemble in (*trained.scores["test"].lambdas, trained.ensemble):
        assert result.scores["test"].nll(ensemble) == pytest.approx(trained.scores["test"].nll(ensemble))
    assert re.search(r"wdr N=4 +test", capsys.readouterr().out)
    (wide,) = run(
        *("--do_train", "false", "--model_name_or_path", str(folder), "--test_file", texts["test"]),
        *("--stride", "4", "--lambda_grid", "0", "0.3"),
    )
    # More context changes the scores, not the number of words.
    assert wide.scores["test"].num_tokens == result.scores["test"].num_tokens
    assert wide.scores["test"].nll_sums[0] != pytest.approx(result.scores["test"].nll_sums[0])
    # Without data options, the run's own text is used, with the same held-out part.
    (own,) = run("--do_train", "false", "--model_name_or_path", str(folder))
    for ensemble in own.scores["validation"].ensembles:
        assert own.scores["validation"].nll(ensemble) == pytest.approx(trained.scores["validation"].nll(ensemble))
    assert own.ensemble == trained.ensemble
    held_out = run("--do_train", "false", "--model_name_or_path", str(folder), "--train_file", texts["train"])
    assert held_out[0].scores["validation"].num_words == sum(
        len(line.split()) + 1 for line in Path(texts["train"]).read_text().splitlines()[-15:]
    )
    # The tables are saved beside the model, or where `--output_dir` says. Nothing else changes.
    after = contents(tmp_path)
    evaluation = {folder / f"evaluation.{suffix}" for suffix in ("md", "json")}
    assert after.keys() - before.keys() == evaluation and before.items() <= after.items()
    assert "| wdr N=4 | validation |" in (folder / "evaluation.md").read_text()
    run("--do_train", "false", "--model_name_or_path", str(folder), "--output_dir", "new")
    assert contents(tmp_path).keys() - after.keys() == {tmp_path / "new" / path.name for path in evaluation}
    metrics = json.loads((tmp_path / "new" / "evaluation.json").read_text())
    assert metrics["splits"].keys() == {"validation", "test"} and metrics["model"] == "wdr N=4"


def test_evaluation_repeats_that_of_the_run(checkpoint, texts, tmp_path, capsys):
    """It takes over the held-out text, block size and stride, also for one of the run's checkpoints."""
    folder = tmp_path / "run"
    command = [
        *QUICK,
        "--model_name_or_path",
        checkpoint,
        "--train_file",
        texts["train"],
        "--test_file",
        texts["test"],
    ]
    command += as_arguments(block_size=8, stride=4, max_steps=1, eval_steps=1, sample_tokens=0)
    (trained,) = run(*command, "--output_dir", str(folder))
    for model in (folder, folder / "checkpoint-1"):
        capsys.readouterr()
        (again,) = run("--do_train", "false", "--model_name_or_path", str(model), "--sample_tokens", "0")
        assert f"Data ({texts['train']}, {texts['test']}): validation " in capsys.readouterr().out
        assert again.scores.keys() == {"validation", "test"}
        for split, scores in again.scores.items():
            assert scores.nll(0.0) == pytest.approx(trained.scores[split].nll(0.0), rel=1e-5)
    other = ["--test_file", texts["test"], "--sample_tokens", "0"]
    (again,) = run("--do_train", "false", "--model_name_or_path", str(folder), *other)
    assert again.scores["test"].nll(0.0) == pytest.approx(trained.scores["test"].nll(0.0), rel=1e-5)


def test_evaluation_in_a_directory_that_cannot_be_written(finished_clm, texts, tmp_path, monkeypatch):
    """Its default folder is that of the model."""
    folder, here = tmp_path / "run", tmp_path / "here"
    shutil.copytree(finished_clm.folder, folder)
    here.mkdir(mode=0o500)
    monkeypatch.chdir(here)
    access = os.access
    # The superuser may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != here and access(path, mode))
    run(
        "--do_train",
        "false",
        "--model_name_or_path",
        str(folder),
        "--test_file",
        texts["test"],
        "--sample_tokens",
        "0",
    )
    assert (folder / "evaluation.md").exists()


def test_evaluation_without_a_validation_text_chooses_nothing(finished_clm, texts, tmp_path, capsys):
    evaluate = ["--do_train", "false", "--model_name_or_path", str(finished_clm.folder), "--output_dir", str(tmp_path)]
    (result,) = run(*evaluate, "--test_file", texts["test"], "--sample_tokens", "0")
    printed = capsys.readouterr().out
    assert "(* the model's own ensemble)" in printed and "validation" not in printed and "best λ" not in printed
    assert result.best_lambda is None and result.ensembles().keys() == {"without heads", "weights"}
