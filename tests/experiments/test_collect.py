"""From the files of runs to records."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from runner.collect import bootstrap, collect, is_finished, is_recorded, record_of
from runner.results import Results
from runner.tables import Run, load_experiment
from sacrebleu import corpus_bleu

from ngram_wdr_hf.data.errors import InputError
from tests.experiments.figures import metrics
from tests.support.errors import raises_naming


def finished(folder: Path, system: str = "free-wdr-4", group: str = "ptb", **fields) -> Run:
    """Write the metrics of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(metrics(**fields)), encoding="utf-8")
    return Run(group, system, 1, folder, {"recipe": "free", "learning_rate": 1e-3, "lambda_grid": [0]}, [["script"]])


def test_figures_of_a_language_model(tmp_path):
    record = record_of(finished(tmp_path), "clm")
    assert record["minutes"] == 1.5
    assert record["validation_perplexity"] == 99.5 and record["lowest_validation_perplexity"] == 98.0
    assert record["gradient_diversity"] == [[0, 0, 0.1]]
    # λ is chosen on the validation set, also for the test set.
    assert record["best_lambda"] == 0.2 and record["lambda"]["test"] == [[0.0, 110.0], [0.2, 106.0], [0.4, 105.0]]
    expected = {"without heads": 100.0, "temperature": 99.0, "best λ": 106.0, "fitted": 90.0}
    assert record["figures"]["test"] == expected and list(record["figures"]["test"]) == list(expected)
    assert record["weights"] == [0.8, 0.2, 0.1, 0.0]


def test_a_run_without_fitted_weights_has_a_best_lambda(tmp_path):
    splits = metrics()["splits"]
    for split in splits.values():
        split["ensembles"] = {"without heads": {"perplexity": split["perplexity"][0], "token_perplexity": 1.0}}
    record = record_of(finished(tmp_path, fit=None, splits=splits), "clm")
    assert record["figures"]["test"] == {"without heads": 110.0, "best λ": 106.0} and record["weights"] is None


def test_figures_of_a_masked_language_model(tmp_path):
    run = finished(tmp_path / "run", splits={"validation": {"perplexity": 30.0, "accuracy": 0.4}}, fit=None)
    run.glue_folder.mkdir()
    tasks = {"sst2": {"last_epoch": {"mean": 0.8}}, "cola": {"last_epoch": {"mean": 0.1}}}
    (run.glue_folder / "glue_metrics.json").write_text(json.dumps({"tasks": tasks}))
    figures = record_of(run, "mlm")["figures"]
    assert figures["validation"] == {"perplexity": 30.0, "accuracy, %": 40.0}
    assert figures["GLUE"] == pytest.approx({"SST-2": 80.0, "CoLA": 10.0, "average": 45.0})


def test_the_plain_model_is_a_free_one_without_its_heads(tmp_path):
    results = Results("ptb", "small")
    collect(load_experiment("ptb", "small"), [finished(tmp_path)], results)
    plain = results.find("ptb", "plain", 1)
    assert plain["parameters"] == 1000 and plain["head_parameters"] == 0 and plain["lambda"] == {}
    assert plain["figures"]["test"] == {"without heads": 100.0}


def test_finished_runs_have_options_and_data_of_the_table(tmp_path):
    settings = {"seed": 1, "learning_rate": 1e-3, "train_file": ["elsewhere/8000-lines.txt"]}
    run = finished(tmp_path / "run", settings=settings)
    assert is_finished(run) and not is_finished(replace(run, folder=tmp_path / "other"))
    assert is_finished(replace(run, source={"data": {"train_file": "8000-lines.txt"}}))
    with raises_naming(InputError, str(run.folder), "train_file"):
        is_finished(replace(run, source={"data": {"train_file": "4000-lines.txt"}}))


def test_glue_figures_of_other_weights_do_not_count(tmp_path):
    """The command of a lengthened run changes its weights; its fine-tuning then has to be repeated."""
    run = replace(finished(tmp_path / "run"), commands=[["script"], ["finetune_glue.py"]])
    assert not is_finished(run)
    run.glue_folder.mkdir()
    weights, path = run.folder / "model.safetensors", run.glue_folder / "glue_metrics.json"
    for file in (weights, path):
        file.write_text("{}")
    os.utime(weights, (1, 1))
    assert is_finished(run)
    os.utime(path, (0, 0))
    assert not is_finished(run)


def test_a_shorter_run_is_continued(tmp_path):
    run = finished(tmp_path, settings={"num_train_epochs": 10.0, "seed": 1})
    is_done = [is_finished(replace(run, options={"num_train_epochs": epochs})) for epochs in (10, 20)]
    assert is_done == [True, False]


def test_figures_are_replaced_by_those_of_other_options(tmp_path):
    results, experiment = Results("ptb", "small"), load_experiment("ptb", "small")
    run = finished(tmp_path, history=[{"step": 1, "train_runtime": 60.0}])
    collect(experiment, [run], results)
    # A recorded run is kept, whatever became of its folder.
    finished(tmp_path, history=[{"step": 1, "train_runtime": 120.0}])
    collect(experiment, [run, replace(run, seed=2, folder=tmp_path / "gone")], results)
    assert [record["minutes"] for record in results.of("ptb", "free-wdr-4")] == [1.0]
    other = replace(run, options={"recipe": "free"})
    for changed in (other, replace(run, source={"script": "other.py"}), replace(run, source={"data": {"a": "b.txt"}})):
        assert is_recorded(run, results) and not is_recorded(changed, results)
    collect(experiment, [other], results)
    assert [record["minutes"] for record in results.of("ptb", "free-wdr-4")] == [2.0]
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json").records == results.records


def test_paired_bootstrap():
    references = [
        f"the {word} sees a bird in the tree number {i}" for i, word in enumerate(("cat", "dog", "cow") * 10)
    ]
    plain = [{"reference": text, "plain": text.replace("bird", "fish"), "hypothesis": text} for text in references]
    better = bootstrap(plain, "plain", plain, "hypothesis")
    assert better["bleu"] == pytest.approx(100) and better["p"] < 0.01
    expected = corpus_bleu([sentence["plain"] for sentence in plain], [references]).score
    assert better["baseline"] == pytest.approx(expected)
    equal = bootstrap(plain, "plain", plain, "plain")
    assert equal["p"] == 1 and equal["bleu"] == equal["baseline"]
