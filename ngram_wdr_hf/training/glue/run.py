"""Fine-tuning on GLUE from beginning to end: examples, classifiers, training, report."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import evaluate
import torch
from transformers import EvalPrediction, Trainer, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ...data.errors import InputError
from ...data.glue import GLUE_TASKS, GlueExamples, GlueTask, load_glue_dataset, read_glue_file
from ...metrics import GLUE
from ..common.arguments import RunArguments
from ..common.run import train_to_the_end
from ..common.run_folder import RunFolder
from ..common.settings import run_settings
from .arguments import GlueDataArguments
from .model import encode, load_classifier, padding_collator
from .report import EpochLines, GlueResult, ProgressWithEpochLines, print_table, save_metrics, save_plot

Splits = dict[str, GlueExamples]


def run_glue(arguments: RunArguments) -> list[GlueResult]:
    """Fine-tunes a checkpoint on every task with every seed, where that is not done yet, and reports."""
    training = arguments.training
    # What cannot be read, and folders that are not free, show before hours of training.
    with training.main_process_first(local=False, desc="reading the examples"):
        splits = {name: load_splits(arguments.data, GLUE_TASKS[name]) for name in arguments.data.task}
        for run in _runs(arguments):
            RunFolder(run.training.output_dir).check(run_settings(run))
        results = {name: _without_runs(GLUE_TASKS[name], examples) for name, examples in splits.items()}
    is_main = training.process_index == 0
    if is_main:
        for name, examples in splits.items():
            counts = {split: f"{len(rows):,}" for split, rows in examples.items()}
            print(
                f"{GLUE_TASKS[name].title}: {counts['train']} training and {counts['validation']} validation examples"
            )
    for run in _runs(arguments):
        (name,) = run.data.task
        folder = RunFolder(run.training.output_dir)
        if not folder.is_trained():
            _fine_tune(run, GLUE_TASKS[name], splits[name], folder)
        results[name].scores[run.training.seed] = _scores(folder, GLUE_TASKS[name])
    results = list(results.values())
    if is_main:
        folder = Path(training.output_dir)
        save_metrics(results, arguments.model.model_name_or_path, folder / "glue_metrics.json")
        save_plot(results, folder / "glue.png")
        print_table(results)
        print(f"\nSaved in {folder}: a model for each task and seed, glue_metrics.json and glue.png.")
    return results


def load_splits(data: GlueDataArguments, task: GlueTask) -> Splits:
    """The training and validation examples of a task."""
    if data.dataset_name is not None:
        return load_glue_dataset(data.dataset_name, task, is_only_task=len(data.task) == 1)
    files = {"train": data.train_file, "validation": data.validation_file}
    if data.data_dir is not None:
        folder = Path(data.data_dir) / task.title
        files = {"train": folder / "train.tsv", "validation": folder / "dev.tsv"}
    return {split: read_glue_file(path, task) for split, path in files.items()}


def _runs(arguments: RunArguments) -> Iterator[RunArguments]:
    """The options of one run after the other: one task and one seed, in a folder of its own."""
    for name in arguments.data.task:
        for seed in arguments.report.seeds or [arguments.training.seed]:
            # `TrainingArguments` is not made to be made twice.
            training = copy.copy(arguments.training)
            training.seed = seed
            training.output_dir = str(Path(training.output_dir) / name / f"seed-{seed}")
            if training.load_best_model_at_end:
                training.metric_for_best_model, training.greater_is_better = GLUE_TASKS[name].metric, True
            data, report = replace(arguments.data, task=[name]), replace(arguments.report, seeds=None)
            yield replace(arguments, data=data, report=report, training=training)


def _fine_tune(run: RunArguments, task: GlueTask, splits: Splits, folder: RunFolder) -> None:
    training, settings = run.training, run_settings(run)
    # The classifier's first weights follow from the seed.
    set_seed(training.seed)
    with training.main_process_first(local=False, desc="preparing the model"):
        model, tokenizer = load_classifier(run.model.model_name_or_path, task)
        encoded = {
            split: encode(examples, model, tokenizer, run.data.max_length) for split, examples in splits.items()
        }
        checkpoint = folder.last_checkpoint()
    try:
        trainer = Trainer(
            model,
            training,
            train_dataset=encoded["train"],
            eval_dataset=encoded["validation"],
            processing_class=tokenizer,
            data_collator=padding_collator(model, tokenizer),
            compute_metrics=glue_metrics(task),
            preprocess_logits_for_metrics=_predicted,
        )
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(f"Trainer cannot be used so: {' '.join(str(error).split())}") from error
    if training.should_save:
        folder.claim(settings, tokenizer)
    # Classifiers take, and pass over, the number of examples of all that make a step together: each loss is a mean.
    trainer.model_accepts_loss_kwargs = False
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(ProgressWithEpochLines(task, training.seed))
    elif trainer.pop_callback(PrinterCallback):
        trainer.add_callback(EpochLines(task, training.seed))
    _train(trainer, checkpoint)


def _train(trainer: Trainer, checkpoint: str | None) -> None:
    """Trains to the end, from a checkpoint if there is one, and saves the model."""
    train_to_the_end(trainer, checkpoint)
    trainer.save_model()
    # Written last: it says that the training is complete.
    trainer.save_state()
    trainer.accelerator.wait_for_everyone()


def glue_metrics(task: GlueTask) -> Callable[[EvalPrediction], dict[str, float]]:
    """What Trainer calls with predicted labels."""
    # In memory: processes would lock each other's files.
    metric = evaluate.load(GLUE, task.name, keep_in_memory=True)
    return lambda outcome: metric.compute(predictions=outcome.predictions, references=outcome.label_ids)


def _predicted(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """The labels alone are gathered; an encoder-decoder model returns its encoder's states, too."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def _without_runs(task: GlueTask, splits: Splits) -> GlueResult:
    """What is known about a task before any run."""
    train, validation = splits["train"], splits["validation"]
    ((majority, _),) = Counter(train.labels).most_common(1)
    guess = EvalPrediction(predictions=[majority] * len(validation), label_ids=validation.labels)
    return GlueResult(task, {}, glue_metrics(task)(guess)[task.metric], len(train), len(validation))


def _scores(folder: RunFolder, task: GlueTask) -> list[float]:
    """What a finished run found after each epoch."""
    name = f"eval_{task.metric}"
    return [entry[name] for entry in folder.history() if name in entry]
