"""Fine-tuning on GLUE: examples, classifiers, training, report."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import evaluate
import torch
from transformers import EvalPrediction, PrinterCallback, ProgressCallback

from ...data.errors import InputError
from ...data.glue import GLUE_TASKS, GlueTask
from ...metrics import GLUE
from ..common.arguments import RunArguments
from ..common.lock import lock
from ..common.run import Run
from ..common.train import end_if_diverged, train_and_save
from ..common.trainer_parts import check_trainer_parts
from ..run_trainer import RunTrainer
from .data import Splits, encode, load_splits, padding_collator
from .model import load_classifier
from .report import (
    EpochLines,
    GlueResult,
    ProgressWithEpochLines,
    print_counts,
    print_table,
    save_classifier_card,
    save_metrics,
    save_plot,
)


def run_glue(arguments: RunArguments) -> list[GlueResult]:
    """
    Fine-tune a checkpoint on every task with every seed, skipping finished runs; print, plot and save the results.
    Return a list of one result per task.
    """
    training = arguments.training
    check_trainer_parts(training)
    runs = single_runs(arguments)
    folder = Path(training.output_dir)
    with ExitStack() as locks:
        for path in (folder, *(run.folder.path for run in runs)):
            lock(path, locks)
        results = _complete(arguments, runs)
        if training.process_index == 0:
            save_metrics(results, runs[0].folder.settings(), folder / "glue_metrics.json")
            save_plot(results, folder / "glue.png")
            print_table(results)
            print(f"\nSaved in {folder}: a model per task and seed, glue_metrics.json and glue.png.")
            end_if_diverged({str(run.folder.path.relative_to(folder)): run.folder.history() for run in runs})
    return results


def _complete(arguments: RunArguments, runs: Sequence[Run]) -> list[GlueResult]:
    """Do what is left of all runs, and return a list of one result per task."""
    training = arguments.training
    # Read all files and check all folders before hours of training.
    with training.main_process_first(local=False, desc="reading the examples"):
        splits = {name: load_splits(arguments.data, GLUE_TASKS[name]) for name in arguments.data.task}
        for run in runs:
            run.check()
        results = {name: _empty_result(GLUE_TASKS[name], examples) for name, examples in splits.items()}
    if training.process_index == 0:
        print_counts(results.values())
    for run in runs:
        (name,) = run.arguments.data.task
        task = GLUE_TASKS[name]
        if run.needs_training:
            _fine_tune(run, task, splits[name])
        metric = f"eval_{task.metric}"
        scores = [entry[metric] for entry in run.folder.history() if metric in entry]
        results[name].scores[run.training.seed] = scores
        if run.saves_results:
            save_classifier_card(task, scores, run.settings, run.folder.path)
    return list(results.values())


def single_runs(arguments: RunArguments) -> list[Run]:
    """
    Return the runs: one task and one seed each, in the subfolder `TASK/seed-SEED`. Raise an `InputError` if
    `--metric_for_best_model` is not the metric of a task.
    """
    runs = []
    for name in arguments.data.task:
        metric = GLUE_TASKS[name].metric
        if arguments.training.requested_metric not in (None, metric):
            raise InputError(
                f"`--metric_for_best_model {arguments.training.requested_metric}` is not the metric of {name}, "
                f"{metric}: remove the option."
            )
        for seed in arguments.report.seeds or [arguments.training.seed]:
            # Not `replace`: `TrainingArguments.__post_init__` cannot run twice.
            training = copy.copy(arguments.training)
            training.seed = seed
            training.output_dir = str(Path(training.output_dir) / name / f"seed-{seed}")
            if training.load_best_model_at_end:
                training.metric_for_best_model, training.greater_is_better = metric, True
            data, report = replace(arguments.data, task=[name]), replace(arguments.report, seeds=None)
            runs.append(Run(replace(arguments, data=data, report=report, training=training)))
    return runs


def _empty_result(task: GlueTask, splits: Splits) -> GlueResult:
    """Return the result of a task before its runs, without scores: the majority class and the numbers of examples."""
    train, validation = splits["train"], splits["validation"]
    ((majority, _),) = Counter(train.labels).most_common(1)
    guess = EvalPrediction(predictions=[majority] * len(validation), label_ids=validation.labels)
    return GlueResult(task, {}, glue_metrics(task)(guess)[task.metric], len(train), len(validation))


def _fine_tune(run: Run, task: GlueTask, splits: Splits) -> None:
    """Train a new classifier on a task and save it in the run's folder. The seed also initializes its new weights."""
    with run.preparing():
        model, tokenizer = load_classifier(run.arguments.model.model_name_or_path, task)
        max_length = run.arguments.data.max_length
        examples = {split: encode(texts, model, tokenizer, max_length) for split, texts in splits.items()}
        run.check_batches(examples["train"])
    try:
        trainer = RunTrainer(
            model,
            run.training,
            train_dataset=examples["train"],
            eval_dataset=examples["validation"],
            processing_class=tokenizer,
            data_collator=padding_collator(model, tokenizer),
            compute_metrics=glue_metrics(task),
            preprocess_logits_for_metrics=_predicted_labels,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(
            f"Trainer does not accept the options ({' '.join(str(error).split())}): change those that it names."
        ) from error
    run.claim(tokenizer, model)
    if run.training.process_index == 0:
        print(f"{type(model).__name__}: {model.num_parameters():,} parameters.")
    # Classifiers accept `num_items_in_batch` but ignore it: their loss is a mean.
    trainer.model_accepts_loss_kwargs = False
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(ProgressWithEpochLines(task, run.training.seed))
    elif trainer.pop_callback(PrinterCallback):
        trainer.add_callback(EpochLines(task, run.training.seed))
    train_and_save(trainer, run.folder, run.settings, run.checkpoint)


def glue_metrics(task: GlueTask) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return the `compute_metrics` function of a task, which takes predicted label ids and returns its metric."""
    # In memory: processes would lock each other's files.
    metric = evaluate.load(GLUE, task.name, keep_in_memory=True)
    return lambda output: metric.compute(predictions=output.predictions, references=output.label_ids)


def _predicted_labels(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """
    Return the predicted label ids, so that Trainer need not keep the logits. For an encoder-decoder model, `logits` is
    a tuple of the logits and its encoder's hidden states.
    """
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)
