"""What every run does around its own kind of data: resume, train to the end, compare, push."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from accelerate import PartialState
from torch import nn
from torch.utils.data import Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerState, set_seed

from ...evaluation.gradients import GradientDiversityCallback
from ..trainer import NgramTrainer
from .arguments import RunArguments
from .hub import make_repository, push_run
from .models import choose_weights
from .report import RunResult, save_gradient_diversity_plot
from .run_folder import RunFolder, check_checkpoint, result_of
from .settings import check_together, others, run_settings, with_data_of_run

Data = TypeVar("Data")
Result = TypeVar("Result", bound=RunResult)


@dataclass(frozen=True)
class Task(Generic[Data, Result]):
    r"""
    What is special about a kind of run.

    Args:
        prepare (`Callable`): From the options and the folder with a tokenizer of the run's own, if there can be one,
            makes the data, which have a `tokenizer`, and the model.
        make_trainer (`Callable`): From the options, the model and the data.
        evaluate (`Callable`): From the options, the trained model, the data, the folder and the settings.
        show (`Callable`): Prints the results, and saves a comparison if it is given a folder.
    """

    prepare: Callable[[RunArguments, Path | None], tuple[Data, PreTrainedModel]]
    make_trainer: Callable[[RunArguments, nn.Module, Data], NgramTrainer]
    evaluate: Callable[[RunArguments, PreTrainedModel, Data, RunFolder, dict[str, Any]], Result]
    show: Callable[[list[Result], Path | None], None]


def run_all(arguments: RunArguments, task: Task[Data, Result]) -> list[Result]:
    """Runs what was asked for, with `--compare` also the other kinds of model, shows the results and pushes."""
    check_together(arguments)
    is_main = arguments.training.process_index == 0
    repository = make_repository(arguments.training) if is_main else None
    # Trainer's own pushes would come with a card of its own.
    arguments.training.push_to_hub = False
    if not arguments.training.do_train:
        arguments = with_data_of_run(arguments)
    results = [run_one(arguments, task)]
    if arguments.report.compare:
        results += [run_one(other, task) for other in others(arguments)]
    if is_main:
        folder = Path(arguments.training.output_dir)
        task.show(results, folder if arguments.report.compare else None)
        if arguments.report.compare:
            save_gradient_diversity_plot(results, folder / "comparison_gradient_diversity.png")
        if arguments.training.do_train:
            print(f"\nSaved in {folder}: the model, README.md, metrics.json and the plots.")
        if repository is not None:
            push_run(folder, repository, arguments.training)
            print(f"Pushed to {repository}.")
    return results


def run_one(arguments: RunArguments, task: Task[Data, Result]) -> Result:
    """Trains if asked to and not yet done, and evaluates."""
    training, do_train = arguments.training, arguments.training.do_train
    folder = RunFolder(training.output_dir)
    settings = run_settings(arguments)
    # Models that are compared begin with the same weights.
    set_seed(training.seed)
    # The first process trains the tokenizer and tokenizes; the others, on all machines, find both done.
    with training.main_process_first(local=False, desc="preparing the data"):
        if do_train:
            folder.check(settings)
        data, model = task.prepare(arguments, folder.path if do_train else None)
        model_class = type(model)
        if do_train:
            model = choose_weights(model, arguments.model)
            checkpoint = None if folder.is_trained() else _checkpoint_to_resume(arguments, folder)
            # By the first process alone: the others read these files at the same time.
            if training.should_save:
                folder.claim(settings, data.tokenizer)
    if do_train and not folder.is_trained():
        _train(arguments, task.make_trainer(arguments, model, data), checkpoint)
    if do_train:
        # Of a run that was complete, too, λ is found again.
        model = model_class.from_pretrained(folder.path, ensemble_lambda=0.0)
    result = task.evaluate(arguments, model, data, folder, settings)
    if training.should_save and do_train:
        is_measured = save_gradient_diversity_plot([result], folder.path / "gradient_diversity.png")
        if arguments.report.gradient_diversity_steps is not None and not is_measured:
            print(f"The run in {folder.path} was trained without `--gradient_diversity_steps`: there is no such plot.")
    # What the first process writes is there when the others go on.
    PartialState().wait_for_everyone()
    return result


def _checkpoint_to_resume(arguments: RunArguments, folder: RunFolder) -> str | None:
    asked = arguments.training.resume_from_checkpoint
    if asked is None or asked.lower() == "true":
        return folder.last_checkpoint()
    if asked.lower() == "false":
        return None
    check_checkpoint(Path(asked))
    return asked


def _train(arguments: RunArguments, trainer: NgramTrainer, checkpoint: str | None) -> None:
    """Trains, and saves the whole model: adapters merged, heads included."""
    training = trainer.args
    patience = arguments.report.patience
    if patience is not None and training.load_best_model_at_end:
        trainer.add_callback(EarlyStoppingCallback(patience))
    if arguments.report.gradient_diversity_steps is not None:
        trainer.add_callback(GradientDiversityCallback(trainer, arguments.report.gradient_diversity_steps))
    train_to_the_end(trainer, checkpoint, patience)
    if arguments.model.train_mode == "lora":
        if training.should_save:
            trainer.model.save_pretrained(Path(training.output_dir) / "adapter")
            trainer.model.merge_and_unload().save_pretrained(training.output_dir)
    else:
        trainer.save_model()
    # Written last: it says that the training is complete.
    trainer.save_state()
    trainer.accelerator.wait_for_everyone()


def train_to_the_end(trainer: Trainer, checkpoint: str | None, patience: int | None = None) -> None:
    """Trains, from a checkpoint if there is one."""
    keeps_best = trainer.args.load_best_model_at_end
    result = None if checkpoint is None else result_of(Path(checkpoint), patience, keeps_best)
    if result is None:
        trainer.train(resume_from_checkpoint=checkpoint)
    else:
        # Interrupted between its last step and its end. Trainer would take another step.
        trainer._load_from_checkpoint(str(result))
        trainer.state = TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")


@contextmanager
def evaluation_trainer(
    arguments: RunArguments, model: nn.Module, eval_dataset: Dataset, trainer_class: type[NgramTrainer] = NgramTrainer
) -> Iterator[NgramTrainer]:
    """A Trainer for the saved model, that reports to nobody and leaves nothing."""
    with TemporaryDirectory() as scratch:
        # What the training reported to is closed by now, and Trainer makes the folder that it is given.
        quiet = copy.copy(arguments.training)
        quiet.report_to, quiet.output_dir = [], scratch
        grid = arguments.lambda_grid if len(model.ngram_heads) else ()
        yield trainer_class(model, quiet, eval_dataset=eval_dataset, lambda_grid=grid)


def save_lambda(folder: Path, ensemble_lambda: float) -> None:
    """Writes the λ that was found into the saved model's configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["ensemble_lambda"] = ensemble_lambda
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
