"""The steps that the runs of all tasks share: begin, prepare, train, score, save, finish."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate import PartialState
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerState,
    set_seed,
)

from ...evaluation.gradients import GradientDiversityCallback
from ...evaluation.scores import MaskedScores, ScoredText, Scores
from ..trainer import NgramTrainer
from .arguments import RunArguments
from .hub import make_repository, push_run
from .plots import save_gradient_diversity_plot, save_lambda_plot, save_training_plot
from .report import TaskResult, describe, save_metrics, save_model_card
from .run_folder import RunFolder, check_checkpoint, result_of
from .settings import best_metric, check_together, others, run_settings, with_data_of_run


def begin(arguments: RunArguments) -> tuple[RunArguments, str | None]:
    """
    Check the options together and complete them. Also returns the repository on the Hub that the run will be pushed
    to, made before the work is done; `None` if it is not pushed, or not by this process.
    """
    check_together(arguments)
    training = arguments.training
    training.metric_for_best_model = best_metric(arguments)
    repository = make_repository(training) if training.process_index == 0 else None
    # Trainer's own pushes would come with a card of its own.
    training.push_to_hub = False
    return arguments if training.do_train else with_data_of_run(arguments), repository


def all_runs(arguments: RunArguments) -> list["Run"]:
    """The run that was asked for, and with `--compare` the same for the other kinds of model."""
    return [Run(arguments), *map(Run, others(arguments) if arguments.report.compare else ())]


class Run:
    r"""
    One model, trained and evaluated in a folder of its own.

    Args:
        arguments (`RunArguments`): Its options.
    """

    def __init__(self, arguments: RunArguments):
        self.arguments = arguments
        self.training = arguments.training
        self.folder = RunFolder(self.training.output_dir)
        self.settings = run_settings(arguments)
        # Where an interrupted training goes on.
        self.checkpoint: str | None = None

    @property
    def tokenizer_folder(self) -> Path | None:
        """Where the run may have a tokenizer of its own; `None` without training."""
        return self.folder.path if self.training.do_train else None

    @property
    def needs_training(self) -> bool:
        """Whether a training was asked for and is not complete."""
        return self.training.do_train and not self.folder.is_trained()

    @property
    def saves_results(self) -> bool:
        """Whether this process writes what the run leaves."""
        return self.training.do_train and self.training.should_save

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """
        The first process prepares the data and the model alone; the others, on all machines, find the tokenizer
        trained and the text tokenized.
        """
        # Models that are compared begin with the same weights.
        set_seed(self.training.seed)
        with self.training.main_process_first(local=False, desc="preparing the data"):
            if self.training.do_train:
                self.folder.check(self.settings)
            if self.needs_training:
                self.checkpoint = self._checkpoint_to_resume()
            yield

    def _checkpoint_to_resume(self) -> str | None:
        asked = self.training.resume_from_checkpoint
        if asked is None or asked.lower() == "true":
            return self.folder.last_checkpoint()
        if asked.lower() == "false":
            return None
        check_checkpoint(Path(asked))
        return asked

    def claim(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Make the folder that of this run, before anything is trained."""
        # By the first process alone: the others read these files at the same time.
        if self.saves_results:
            self.folder.claim(self.settings, tokenizer)

    def train(self, trainer: NgramTrainer) -> None:
        """Train to the end, and save the model."""
        report = self.arguments.report
        if report.patience is not None and trainer.args.load_best_model_at_end:
            trainer.add_callback(EarlyStoppingCallback(report.patience))
        if report.gradient_diversity_steps is not None:
            trainer.add_callback(GradientDiversityCallback(trainer, report.gradient_diversity_steps))
        train_and_save(trainer, self.checkpoint, report.patience, self.arguments.model.train_mode == "lora")

    def load_trained(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model as it was saved, with λ still to be chosen; without training, `model` itself."""
        if not self.training.do_train:
            return model
        return type(model).from_pretrained(self.folder.path, ensemble_lambda=0.0)

    def score(
        self,
        model: PreTrainedModel,
        texts: Mapping[str, ScoredText],
        trainer_class: type[NgramTrainer] = NgramTrainer,
    ) -> dict[str, Scores | MaskedScores]:
        """The scores of every text, by all processes together; nothing is logged or left on disk."""
        scores = {}
        if not texts:
            return scores
        with TemporaryDirectory() as scratch:
            # What the training reported to is closed by now, and Trainer makes the folder that it is given.
            quiet = copy.copy(self.training)
            quiet.report_to, quiet.output_dir = [], scratch
            grid = self.arguments.lambda_grid if len(model.ngram_heads) else ()
            # Trainer wants a text when it is made; each is given by name below.
            trainer = trainer_class(model, quiet, eval_dataset=next(iter(texts.values())), lambda_grid=grid)
            for split, text in texts.items():
                trainer.evaluate(text, metric_key_prefix=split)
                scores[split] = trainer.last_scores
        return scores

    def facts(self, model: PreTrainedModel) -> dict[str, Any]:
        """What the result of every run has: about the model, the settings and the training."""
        history = self.folder.history() if self.training.do_train else []
        return {**describe(model), "settings": self.settings, "history": history}

    def save(self, result: TaskResult) -> None:
        """Write λ into the saved model's configuration, and beside it the plots, the card and the metrics."""
        path = self.folder.path
        if self.saves_results:
            if result.ensemble_lambda is not None:
                _save_lambda(path / "config.json", result.ensemble_lambda)
            save_lambda_plot([result], path / "lambda_sweep.png")
            save_training_plot([result], path / "training.png")
            save_model_card(result, path / "README.md")
            save_metrics(result, path / "metrics.json")
            is_measured = save_gradient_diversity_plot([result], path / "gradient_diversity.png")
            if self.arguments.report.gradient_diversity_steps is not None and not is_measured:
                print(f"The run in {path} was trained without `--gradient_diversity_steps`: there is no such plot.")
        # What the first process writes is there when the others go on.
        PartialState().wait_for_everyone()


def train_and_save(
    trainer: Trainer, checkpoint: str | None, patience: int | None = None, merges_adapters: bool = False
) -> None:
    """Train, from a checkpoint if there is one, and save the whole model: adapters merged, heads included."""
    training = trainer.args
    result = None
    if checkpoint is not None:
        result = result_of(Path(checkpoint), patience, training.load_best_model_at_end)
    if result is None:
        trainer.train(resume_from_checkpoint=checkpoint)
    else:
        # Interrupted between its last step and its end. Trainer would take another step.
        trainer._load_from_checkpoint(str(result))
        trainer.state = TrainerState.load_from_json(Path(checkpoint) / "trainer_state.json")
    if not merges_adapters:
        trainer.save_model()
    elif training.should_save:
        trainer.model.save_pretrained(Path(training.output_dir) / "adapter")
        trainer.model.merge_and_unload().save_pretrained(training.output_dir)
    # Written last: it says that the training is complete.
    trainer.save_state()
    trainer.accelerator.wait_for_everyone()


def _save_lambda(path: Path, ensemble_lambda: float) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    config["ensemble_lambda"] = ensemble_lambda
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def finish(arguments: RunArguments, results: Sequence[TaskResult], repository: str | None) -> None:
    """Plot a comparison, say where everything is, and push it."""
    folder = Path(arguments.training.output_dir)
    if arguments.report.compare:
        save_lambda_plot(results, folder / "comparison.png")
        save_training_plot(results, folder / "comparison_training.png")
        save_gradient_diversity_plot(results, folder / "comparison_gradient_diversity.png")
    if arguments.training.do_train:
        print(f"\nSaved in {folder}: the model, README.md, metrics.json and the plots.")
    if repository is not None:
        push_run(folder, repository, arguments.training)
        print(f"Pushed to {repository}.")
