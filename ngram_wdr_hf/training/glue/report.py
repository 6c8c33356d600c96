"""Results of fine-tuning on GLUE."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback

from ...data.glue import GlueTask
from ..common.model_card import as_markdown, code_block, escape, literal
from ..common.report import as_text
from ..common.run_folder import MODEL_WEIGHTS

USAGE = """from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained({name})
tokenizer = AutoTokenizer.from_pretrained({name})
inputs = tokenizer({sentences}, return_tensors="pt", truncation=True)
print(model.config.id2label[model(**inputs).logits.argmax().item()])"""
EXAMPLES = ("A sentence.", "Another sentence.")


@dataclass
class GlueResult:
    r"""
    The results of all runs of a task.

    Args:
        task (`GlueTask`): The task.
        scores (`dict[int, list[float]]`): By seed, the validation metric after every epoch.
        majority (`float`): The metric of always predicting the most frequent training label.
        num_train (`int`): Number of training examples.
        num_validation (`int`): Number of validation examples.
    """

    task: GlueTask
    scores: dict[int, list[float]]
    majority: float
    num_train: int
    num_validation: int

    @property
    def last(self) -> list[float]:
        """The validation metric after the last epoch, one value per seed."""
        return [scores[-1] for scores in self.scores.values()]

    @property
    def best(self) -> list[float]:
        """
        The validation metric of the best epoch, one value per seed. It is optimistic, as the epoch is chosen by the
        reported metric.
        """
        return [max(scores) for scores in self.scores.values()]


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; `None` for a single value."""
    return stdev(values) if len(values) > 1 else None


def result_table(results: Sequence[GlueResult]) -> list[list[str]]:
    """
    Return a table with a row per task: mean ± standard deviation over the seeds, after the last and the best epoch,
    and the metric of the majority class. All are multiplied by 100, as in GLUE.
    """
    rows = [["task", "metric", "seeds", "last epoch", "best epoch", "majority class"]]
    for result in results:
        cells = []
        for values in (result.last, result.best):
            deviation = standard_deviation(values)
            cells.append(f"{100 * mean(values):.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}"))
        rows.append(
            [
                result.task.title,
                result.task.metric_title,
                f"{len(result.scores)}",
                *cells,
                f"{100 * result.majority:.1f}",
            ]
        )
    return rows


def print_counts(results: Iterable[GlueResult]) -> None:
    """Print a line per task with the numbers of training and validation examples."""
    for result in results:
        print(f"{result.task.title}: {result.num_train:,} training and {result.num_validation:,} validation examples")


def print_table(results: Sequence[GlueResult]) -> None:
    """Print the table of results, a row per task, and which of its columns to report."""
    print(f"\nValidation, × 100: mean ± standard deviation over seeds\n\n{as_text(result_table(results))}")
    print(
        "\nReport the last epoch: the best one is chosen per seed by the validation score itself, which is optimistic."
    )


def save_metrics(results: Sequence[GlueResult], settings: Mapping[str, Any], path: Path) -> None:
    """Write the results of all tasks as JSON, with name and weights of the checkpoint in the runs' `settings`."""
    tasks = {
        result.task.name: {
            "metric": result.task.metric,
            "last_epoch": _summary(result.last),
            "best_epoch": _summary(result.best),
            "majority_class": result.majority,
            "by_seed": {str(seed): scores for seed, scores in result.scores.items()},
            "num_train": result.num_train,
            "num_validation": result.num_validation,
        }
        for result in results
    }
    model = {"model": settings["model_name_or_path"], MODEL_WEIGHTS: settings.get(MODEL_WEIGHTS)}
    text = json.dumps({**model, "tasks": tasks}, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": mean(values), "std": standard_deviation(values)}


def save_plot(results: Sequence[GlueResult], path: Path) -> None:
    """
    Plot the metric over the epochs, one panel per task and one line per seed, with a dashed line for the majority
    class, and save it to `path`.
    """
    figure = Figure(figsize=(4.5 * len(results), 3.6), layout="constrained")
    for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
        for seed, scores in result.scores.items():
            epochs = range(1, len(scores) + 1)
            axes.plot(epochs, [100 * score for score in scores], marker="o", label=f"seed {seed}")
        axes.axhline(100 * result.majority, color="gray", linestyle="--", label="majority class")
        axes.set(title=result.task.title, xlabel="epoch", ylabel=f"{result.task.metric_title} × 100")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def save_classifier_card(task: GlueTask, scores: Sequence[float], settings: dict[str, Any], folder: Path) -> None:
    """Write the model card of one run's classifier to its folder: use, validation scores by epoch, and settings."""
    sentences = ", ".join(map(literal, EXAMPLES[: len(task.sentences)]))
    rows = [["evaluation", task.metric_title], *([f"{i}", f"{100 * score:.1f}"] for i, score in enumerate(scores, 1))]
    listed = "\n".join(f"- `{name}`: {escape(str(value))}" for name, value in settings.items() if value is not None)
    (folder / "README.md").write_text(
        f"""---
library_name: transformers
pipeline_tag: text-classification
tags:
- ngram-wdr-hf
---

# {task.title}

A classifier for {task.title}, fine-tuned with `ngram_wdr_hf`. A stock model of Transformers, without N-gram heads.

## Use

{code_block(USAGE.format(name=literal(str(folder)), sentences=sentences), "python")}

## Results

On the validation set, × 100, after every epoch:

{as_markdown(rows)}

## Settings

{listed}
""",
        encoding="utf-8",
    )


class EpochLines(TrainerCallback):
    """Callback that prints epoch, losses and metric after each evaluation, in the first process."""

    def __init__(self, task: GlueTask, seed: int):
        super().__init__()
        self.task, self.name = task, f"{task.title}, seed {seed}"

    def on_log(self, args, state, control, logs: dict[str, Any] | None = None, **kwargs):
        score = logs.get(f"eval_{self.task.metric}")
        if score is None or not state.is_world_process_zero:
            return
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        training = f"training loss {losses[-1]:.3f}  " if losses else ""
        # Not `num_train_epochs`: `--max_steps` may end the training before or after them.
        epochs = state.max_steps * state.epoch / state.global_step
        tqdm.write(
            f"{self.name}  epoch {state.epoch:.3g} of {epochs:.3g}  {training}"
            f"validation loss {logs['eval_loss']:.3f}  {self.task.metric_title} {100 * score:.1f}"
        )


class ProgressWithEpochLines(EpochLines, ProgressCallback):
    """Callback that prints the lines of `EpochLines` above Trainer's progress bars."""
