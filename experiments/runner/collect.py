"""From the folders of runs to the figures of a table."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.evaluation.gradient_diversity import GRADIENT_DIVERSITY
from ngram_wdr_hf.training.glue import GLUE_TASKS
from ngram_wdr_hf.training.run_folder import METRICS

from .results import BEST_LAMBDA, GLUE, WITHOUT_HEADS, Results, is_current
from .tables import Experiment, Run

GLUE_METRICS, WEIGHTS, TRANSLATIONS = "glue_metrics.json", "model.safetensors", "test_translations.jsonl"
# The option that continues a finished run if it is increased.
LENGTH = "num_train_epochs"
# The metric of each task in metrics.json.
METRIC = {"clm": "perplexity", "nmt": "bleu"}
ENSEMBLES = (WITHOUT_HEADS, "temperature", BEST_LAMBDA, "fitted")
# Columns of the comparison by paired bootstrap, with the field of each sentence.
TRANSLATED = {WITHOUT_HEADS: "plain", "chosen ensemble": "hypothesis"}


def is_finished(run: Run) -> bool:
    """
    Return whether all commands of a run have ended. A shorter run is not finished: its command continues it. Raise an
    `InputError` if its folder holds a run with other options or data.
    """
    metrics = read_metrics(run)
    if metrics is None:
        return False
    differing = differing_settings(run, metrics["settings"])
    if LENGTH in differing and metrics["settings"][LENGTH] < run.options[LENGTH]:
        return False
    for name, value in differing.items():
        raise InputError(
            f"The run in {run.folder} has another {name} ({metrics['settings'][name]}, now {value}): delete the "
            "folder, or choose other `--runs`."
        )
    return len(run.commands) == 1 or _has_current_glue(run)


def _has_current_glue(run: Run) -> bool:
    """Return whether a run has been fine-tuned on GLUE, with the weights that it has now."""
    path = run.glue_folder / GLUE_METRICS
    return path.exists() and path.stat().st_mtime_ns >= (run.folder / WEIGHTS).stat().st_mtime_ns


def differing_settings(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options and data files of a run that differ from its saved settings, the length last."""
    options = {**run.options, "seed": run.seed}
    found = {name: value for name, value in options.items() if name in settings and not _same(settings[name], value)}
    for name, value in run.source.get("data", {}).items():
        if name in settings and not _same(_file_names(settings[name]), [value]):
            found[name] = value
    return dict(sorted(found.items(), key=lambda item: item[0] == LENGTH))


def _file_names(paths: str | list[str]) -> list[str]:
    return [Path(path).name for path in ([paths] if isinstance(paths, str) else paths)]


def is_recorded(run: Run, results: Results) -> bool:
    """Return whether the results have the figures of a run with the same options, be its folder there or not."""
    return any(record["seed"] == run.seed and is_current(record, run) for record in results.of(run.group, run.system))


def read_metrics(run: Run) -> dict[str, Any] | None:
    """Return the metrics of a finished training; `None` without."""
    path = run.folder / METRICS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _same(saved: Any, given: Any) -> bool:
    """Return whether a saved setting has the value that an option gives it."""
    if isinstance(saved, list) and isinstance(given, list):
        return len(saved) == len(given) and all(map(_same, saved, given))
    if isinstance(saved, (int, float)) and isinstance(given, (int, float)):
        return saved == given
    return str(saved) == str(given)


def collect(experiment: Experiment, runs: Iterable[Run], results: Results) -> None:
    """Add the figures of the runs that are finished and not recorded yet to `results`."""
    runs = list(runs)
    for run in [run for run in runs if not is_recorded(run, results) and is_finished(run)]:
        record = record_of(run, experiment.task)
        results.add(record)
        for system, source in experiment.without_heads.items():
            if source == run.system:
                results.add(_without_heads(record, system))
    if experiment.task == "nmt":
        _compare_translations(experiment, [run for run in runs if _has_translations(run, results)], results)


def record_of(run: Run, task: str) -> dict[str, Any]:
    """Return what a table needs of a finished run."""
    metrics = read_metrics(run)
    splits, fit, history = metrics["splits"], metrics["fit"], metrics["history"]
    times = [entry["train_runtime"] / 60 for entry in history if "train_runtime" in entry]
    record = {
        "group": run.group,
        "system": run.system,
        "seed": run.seed,
        "options": run.options,
        "source": run.source,
        "model": metrics["model"],
        "parameters": metrics["num_parameters"],
        "head_parameters": metrics["head_parameters"],
        "minutes": times[-1] if times else None,
        "validation_perplexity": None,
        "lowest_validation_perplexity": _lowest(history),
        "weights": fit and fit["weights"],
        "temperature_weight": fit and fit["temperature_weight"],
        "best_lambda": None,
        "lambda": {},
        "figures": {},
        GRADIENT_DIVERSITY: [
            [entry["step"], entry["epoch"], entry[GRADIENT_DIVERSITY]]
            for entry in history
            # The gradients of a batch may cancel out.
            if entry.get(GRADIENT_DIVERSITY) is not None
        ],
    }
    if task == "mlm":
        for split, scores in splits.items():
            figures = {"perplexity": scores["perplexity"], "accuracy, %": 100 * scores["accuracy"]}
            record["figures"][split] = figures
    else:
        _add_ensembles(record, splits, METRIC[task])
    if (run.glue_folder / GLUE_METRICS).exists():
        record["figures"][GLUE] = _glue_figures(run.glue_folder / GLUE_METRICS)
    return record


def _lowest(history: list[dict[str, float]]) -> float | None:
    """Return the lowest perplexity by token, without heads, of all evaluations in training."""
    return min((entry["eval_perplexity"] for entry in history if "eval_perplexity" in entry), default=None)


def _own_perplexity(scores: dict[str, Any]) -> float:
    """Return the perplexity by token without heads of a language or translation model."""
    if "ensemble_perplexity" in scores:
        return scores["ensemble_perplexity"][WITHOUT_HEADS]
    return scores["ensembles"][WITHOUT_HEADS]["token_perplexity"]


def _add_ensembles(record: dict[str, Any], splits: dict[str, Any], metric: str) -> None:
    """Add the metric by λ and by ensemble. The best λ is that of the validation set."""
    grids = {
        split: [[value, figure] for value, figure in zip(scores["lambda"], scores[metric], strict=True)]
        for split, scores in splits.items()
    }
    record["validation_perplexity"] = _own_perplexity(splits["validation"])
    best = max if metric == "bleu" else min
    if record["head_parameters"]:
        record["best_lambda"] = best(grids["validation"], key=lambda point: point[1])[0]
        record["lambda"] = grids
    for split, scores in splits.items():
        figures = {name: by_metric[metric] for name, by_metric in scores["ensembles"].items()}
        # A run without fitted weights has no entry for the best λ.
        figures[BEST_LAMBDA] = dict(grids[split]).get(record["best_lambda"])
        record["figures"][split] = {name: figures[name] for name in ENSEMBLES if figures.get(name) is not None}


def _glue_figures(path: Path) -> dict[str, float]:
    """Return the scores of the last epoch by task, means over the seeds of fine-tuning, × 100."""
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"]
    figures = {GLUE_TASKS[name].title: 100 * scores["last_epoch"]["mean"] for name, scores in tasks.items()}
    return {**figures, "average": mean(figures.values())}


def _without_heads(record: dict[str, Any], system: str) -> dict[str, Any]:
    """Return the record of the same model without its heads."""
    figures = {split: {WITHOUT_HEADS: values[WITHOUT_HEADS]} for split, values in record["figures"].items()}
    return {
        **record,
        "system": system,
        "parameters": record["parameters"] - record["head_parameters"],
        "head_parameters": 0,
        "minutes": None,
        "weights": None,
        "temperature_weight": None,
        "best_lambda": None,
        "lambda": {},
        "figures": figures,
        GRADIENT_DIVERSITY: [],
    }


def _compare_translations(experiment: Experiment, runs: list[Run], results: Results) -> None:
    """Add to each run's figures how its translations compare with those of the plain model of the same seed."""
    baseline = experiment.without_heads.get("plain", "plain")
    by_name = {(run.group, run.system, run.seed): run for run in runs}
    for run in runs:
        plain = by_name.get((run.group, baseline, run.seed))
        if plain is None:
            continue
        record = results.find(run.group, run.system, run.seed)
        columns = TRANSLATED if record["head_parameters"] else {WITHOUT_HEADS: "plain"}
        # A run that stands for the plain model is compared with itself only with its ensemble.
        columns = {name: field for name, field in columns.items() if run is not plain or field != "plain"}
        record["bootstrap"] = {
            name: bootstrap(read_translations(plain), "plain", read_translations(run), field)
            for name, field in columns.items()
        }


def _has_translations(run: Run, results: Results) -> bool:
    """Return whether the translations of a recorded run are there, and not those of a longer one that continued it."""
    metrics = read_metrics(run) if is_recorded(run, results) and (run.folder / TRANSLATIONS).exists() else None
    return metrics is not None and not differing_settings(run, metrics["settings"])


def read_translations(run: Run) -> list[dict[str, str]]:
    lines = (run.folder / TRANSLATIONS).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def bootstrap(
    baseline: list[dict[str, str]], baseline_field: str, translations: list[dict[str, str]], field: str
) -> dict[str, float]:
    """Return BLEU of two sets of translations, and the p-value of their difference by sacrebleu's paired bootstrap."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    references = [sentence["reference"] for sentence in baseline]
    named = [
        ("plain", [sentence[baseline_field] for sentence in baseline]),
        ("system", [sentence[field] for sentence in translations]),
    ]
    test = PairedTest(named, {"BLEU": BLEU(references=[references])}, references=None, test_type="bs")
    _, scores = test()
    plain, system = scores["BLEU"]
    # Sacrebleu gives equal scores its smallest p-value if no resampled difference exceeds its mean.
    p_value = 1.0 if system.score == plain.score else system.p_value
    return {"baseline": plain.score, "bleu": system.score, "p": p_value}
