"""Steps of a run, shared by all tasks: prepare, train, score, save."""

import copy
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

from accelerate import PartialState
from accelerate.utils import reduce
from torch import nn
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from ...data.errors import InputError
from ...evaluation.ensemble_fit import EnsembleFit, fit_ensemble
from ...evaluation.gradient_diversity import GradientDiversityCallback
from ...evaluation.scores import MaskedScores, ScoredText, Scores
from ...method.ensemble import ensemble_arguments
from ...modeling.default_drafts import SAVED_USE_MTP
from ..run_trainer import Diverged
from ..trainer import NgramTrainer, to_device
from .arguments import RunArguments
from .checkpoints import check_checkpoint, check_heads, read_mapping
from .model import choose_weights, limit_length
from .model_card import save_model_card
from .plots import save_gradient_diversity_plot, save_lambda_plot, save_training_plot
from .report import TaskResult, describe, save_metrics, save_tables
from .run_folder import EVALUATION, METRICS, SETTINGS, RunFolder
from .settings import (
    SELECTION,
    check_restored,
    describe_data,
    fits_in_training,
    measures_acceptance,
    output_folder,
    run_settings,
)
from .train import describe_trained, stopped_early, train_and_save


class RunData(Protocol):
    """The data of a run, of any task."""

    tokenizer: PreTrainedTokenizerBase

    def counts(self) -> dict[str, str]: ...


Data = TypeVar("Data", bound=RunData)


class Run:
    r"""
    The training and evaluation of one model, with a folder of its own. `settings` are the options that identify it.
    `check` sets `needs_training`, whether the training is to begin or continue, and `checkpoint`, the one to resume,
    `None` to start anew.

    Args:
        arguments (`RunArguments`): The options.
        repository (`str`, *optional*): The repository on the Hub that the run will be pushed to.
        first (`Run`, *optional*): The run that this one is compared with, whose tokenizer it uses.
    """

    def __init__(self, arguments: RunArguments, repository: str | None = None, first: "Run | None" = None):
        self.arguments = arguments
        self.repository = repository
        self.first = first
        self.training = arguments.training
        self.folder = RunFolder(output_folder(arguments))
        self.settings = run_settings(arguments)
        self.needs_training = False
        self.checkpoint: Path | None = None

    @property
    def tokenizer_folder(self) -> Path | None:
        """
        The folder of the run, or of `first`, which holds its tokenizer once it has begun; `None` before that, and
        without training.
        """
        folder = (self.first or self).folder
        return folder.path if self.training.do_train and folder.has_begun() else None

    @property
    def saves_results(self) -> bool:
        """Whether this process writes the results: the first one, in a run with training."""
        return self.training.do_train and self.training.should_save

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """
        Run the `with` block, which prepares data and model, in the first process of all machines before the others,
        which then find the trained tokenizer and the tokenized text. Before it, set the seed, check the folder, and
        choose the checkpoint to resume from.
        """
        # Compared models start from the same weights.
        set_seed(self.training.seed)
        with self.training.main_process_first(local=False, desc="preparing the data"):
            if self.training.do_train:
                self.check()
            yield

    def check(self) -> None:
        """
        Raise an `InputError` unless the folder is free or holds this run. Set `needs_training` and `checkpoint` by how
        far the run came.
        """
        self.needs_training = not (self.folder.is_trained() and self.folder.has_length_of(self.settings))
        if not self.needs_training and self.training.requested_metric is None:
            # The best checkpoint is chosen already, perhaps by the metric of another `--ensemble`.
            saved = self.folder.settings()
            self.settings |= {name: saved[name] for name in SELECTION if name in saved}
        self.folder.check(self.settings)
        if not self.needs_training:
            return
        self.checkpoint = self._checkpoint_to_resume()
        damage = self.folder.damage()
        if damage is not None:
            self._tell_replaced(damage)
        if self.training.process_index == 0:
            self.folder.remove_damaged_config()

    def _tell_replaced(self, damage: str) -> None:
        """Say which checkpoint replaces the model of a completed training; raise an `InputError` if there is none."""
        if self.checkpoint is None:
            raise InputError(
                f"`--output_dir {self.folder.path}` {damage}, and there is no checkpoint. Delete the folder to train "
                "again."
            )
        if self.training.process_index == 0:
            print(f"The model in {self.folder.path} {damage}: {self.checkpoint.name} takes its place.")

    def _checkpoint_to_resume(self) -> Path | None:
        requested = self.training.resume_from_checkpoint
        if requested is None or requested.lower() == "true":
            return self.folder.last_checkpoint()
        if requested.lower() == "false":
            return None
        requested = Path(requested)
        if (requested / SETTINGS).is_file() or (not requested.name.startswith("checkpoint-") and requested.is_dir()):
            # A run's folder.
            checkpoint = RunFolder(requested).last_checkpoint()
            if checkpoint is None:
                raise InputError(f"`--resume_from_checkpoint {requested}` has no checkpoint. Give another folder.")
        else:
            checkpoint = requested
            check_checkpoint(checkpoint)
        if checkpoint.absolute().parent == self.folder.path.absolute():
            return checkpoint
        # A run that began with another run's checkpoint, and was interrupted.
        own = self.folder.last_checkpoint()
        if own is None:
            check_restored(self.training, checkpoint)
        return own or checkpoint

    def check_batches(self, items: Iterable) -> None:
        """Raise an `InputError` if `--dataloader_drop_last` would leave no batch of the training set `items`."""
        size = self.training.train_batch_size * self.training.world_size
        if self.training.dataloader_drop_last and isinstance(items, Sized) and len(items) < size:
            raise InputError(
                f"`--dataloader_drop_last` leaves nothing to train on, as the training set has {len(items):,} rows "
                f"and a full batch {size:,}. Remove the option, or lower the batch size."
            )

    def claim(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
        """
        Lower the tokenizer's maximum length, in place, to the model's longest input. In a run with training, the
        process that saves also writes settings and tokenizer to the folder, unless it has settings already. Raise an
        `InputError` before that if the checkpoint to resume from has heads of another kind.
        """
        if self.checkpoint is not None:
            check_heads(model.config, self.checkpoint)
        limit_length(tokenizer, model)
        if self.saves_results:
            self.folder.claim(self.settings, tokenizer)

    def complete_training(
        self,
        prepare: Callable[["Run"], tuple[Data, PreTrainedModel]],
        make_trainer: Callable[["Run", nn.Module, Data], NgramTrainer],
    ) -> tuple[Data, PreTrainedModel]:
        """
        Prepare data and model, and train what is left to train. Return the data and the trained model. `make_trainer`
        is given the module to train, the model itself or with an adapter.
        """
        with self.preparing():
            data, model = prepare(self)
            self.claim(data.tokenizer, model)
        self.introduce(model, data.counts())
        if self.needs_training:
            self.train(make_trainer(self, choose_weights(model, self.arguments.model), data))
        return data, self.load_trained(model)

    def introduce(self, model: PreTrainedModel, counts: Mapping[str, str]) -> None:
        """Print the sizes of the model and of each split (`counts`), and whether the run is trained already."""
        if self.training.process_index != 0:
            return
        fields = describe(model)
        heads = f", {fields['head_parameters']:,} of them in the heads" if model.ngram_heads else ""
        texts = ", ".join(f"{split} {count}" for split, count in counts.items())
        source = describe_data(self.arguments.data)
        print(f"{fields['name']}: {fields['num_parameters']:,} parameters{heads}. Data ({source}): {texts}.")
        if self.training.do_train and not self.needs_training:
            state = self.folder.trained_state()
            is_cut_short = state.global_step < state.max_steps and stopped_early(state, self.arguments.report.patience)
            print(describe_trained(self.folder.path, f"{state.global_step:,} steps", is_cut_short))

    def trainer_options(self, model: PreTrainedModel) -> dict[str, Any]:
        """Return the arguments of [`NgramTrainer`] that the options for heads and ensemble set."""
        metric = self.training.metric_for_best_model
        # The ensemble takes longer than the rest of an evaluation, and says nothing about drafts.
        needs_ensemble = metric != "accepted_drafts"
        fits = needs_ensemble and fits_in_training(self.arguments)
        # The grid takes longer than the fit, and the fit is at least as good.
        needs_grid = needs_ensemble and (not fits or metric == "best_perplexity")
        return {
            "ensembles": self.arguments.lambda_grid if needs_grid and len(model.ngram_heads) else (),
            "fits_ensemble": fits,
            "measures_acceptance": measures_acceptance(self.arguments),
            "head_loss_schedule": self.arguments.model.head_loss_schedule,
        }

    def train(self, trainer: NgramTrainer) -> None:
        """Train the model, resuming from `checkpoint`, with the callbacks that the options ask for, and save it."""
        report = self.arguments.report
        if report.patience is not None and trainer.args.load_best_model_at_end:
            trainer.add_callback(EarlyStoppingCallback(report.patience))
        if report.gradient_diversity_steps is not None:
            trainer.add_callback(GradientDiversityCallback(trainer, report.gradient_diversity_steps))
        merges_adapters = self.arguments.model.train_mode == "lora"
        train_and_save(trainer, self.folder, self.settings, self.checkpoint, report.patience, merges_adapters)

    def load_trained(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return the saved model, without an ensemble until that is chosen; without training, `model` itself."""
        if not self.training.do_train:
            return model
        return type(model).from_pretrained(self.folder.path, ensemble_lambda=0.0, ensemble_weights=None)

    def fit(self, model: PreTrainedModel, texts: Mapping[str, ScoredText]) -> EnsembleFit | None:
        """
        Return the ensemble's weights that fit the validation text best, with all processes; `None` if the options ask
        for no weights, or the model has no heads. Raise an `InputError` if there is no validation text.
        """
        if not self.arguments.fits_ensemble or not len(model.ngram_heads):
            return None
        if "validation" not in texts:
            raise InputError("`--ensemble fitted` needs a validation set: give one, or remove the option.")
        training = self.training
        return fit_ensemble(
            to_device(model, training),
            texts["validation"],
            training.eval_batch_size,
            process_index=training.process_index,
            num_processes=training.world_size,
            add_up=partial(reduce, reduction="sum"),
        )

    def score(
        self,
        model: PreTrainedModel,
        texts: Mapping[str, ScoredText],
        fit: EnsembleFit | None = None,
        trainer_class: type[NgramTrainer] = NgramTrainer,
    ) -> dict[str, Scores | MaskedScores]:
        """
        Return the scores of every text by its name, computed by all processes for each λ of `--lambda_grid` and for
        the weights and the temperature of `fit`, unless `None`. Log and write nothing. `trainer_class` decides how
        texts are scored.
        """
        scores = {}
        if not texts:
            return scores
        with TemporaryDirectory() as scratch:
            # Trainer creates its output folder, and the reporting integrations are already closed.
            options = copy.copy(self.training)
            options.report_to, options.output_dir = [], scratch
            ensembles = [*self.arguments.lambda_grid] if len(model.ngram_heads) else []
            if fit is not None:
                ensembles += [0.0, fit.temperature, fit.ensemble]
            # Trainer requires an `eval_dataset` here; `evaluate` below replaces it.
            trainer = trainer_class(model, options, eval_dataset=next(iter(texts.values())), ensembles=ensembles)
            for split, text in texts.items():
                try:
                    trainer.evaluate(text, metric_key_prefix=split)
                except Diverged as error:
                    source = self.folder.path if self.training.do_train else self.arguments.model.model_name_or_path
                    raise InputError(
                        f"The model in `{source}` has no finite loss on the {split} text: its weights are damaged, or "
                        "its training diverged. Choose another model."
                    ) from error
                scores[split] = trainer.last_scores
        return scores

    def result_fields(self, model: PreTrainedModel) -> dict[str, Any]:
        """Return the fields of a `RunResult` except those of the ensemble; `history` is empty without training."""
        history = self.folder.history() if self.training.do_train else []
        return {**describe(model), "settings": self.settings, "history": history}

    def save(self, result: TaskResult) -> None:
        """
        Write the ensemble to the saved configuration, drafts as the default to the generation config if the heads are
        trained for drafts alone, and write plots, model card and metrics, in the process that saves; the others wait.
        Without training, write tables and metrics only, as `evaluation.md` and `evaluation.json`.
        """
        path = self.folder.path
        if not self.training.do_train and self.training.should_save:
            save_tables(result, path / f"{EVALUATION}.md")
            save_metrics(result, path / f"{EVALUATION}.json")
        if self.saves_results:
            if result.ensemble is not None:
                no_ensemble = {"ensemble_lambda": 0.0, "ensemble_weights": None}
                _update_file(path / "config.json", no_ensemble | ensemble_arguments(result.ensemble))
                drafts = {SAVED_USE_MTP: True, "_from_model_config": False}
                is_for_drafts = read_mapping(path / "config.json").get("head_loss_tokens") == "draft"
                options = drafts if is_for_drafts else {}
                _update_file(path / "generation_config.json", options, {"use_mtp", SAVED_USE_MTP})
            save_lambda_plot([result], path / "lambda_sweep.png")
            save_training_plot([result], path / "training.png")
            save_model_card(result, path / "README.md", self.repository or str(path))
            save_metrics(result, path / METRICS)
            has_plot = save_gradient_diversity_plot([result], path / "gradient_diversity.png")
            if self.arguments.report.gradient_diversity_steps is not None and not has_plot:
                print(
                    f"`--gradient_diversity_steps` gives no plot: the run in {path} was already trained, without this "
                    "option."
                )
        # The other processes may read these files next.
        PartialState().wait_for_everyone()


def _update_file(path: Path, fields: Mapping[str, Any], removed: Container[str] = ()) -> None:
    """Remove fields from a JSON file, and set others."""
    config = {name: value for name, value in read_mapping(path).items() if name not in removed}
    config |= fields
    # Renamed when complete, so that a full disk leaves no damaged file.
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    unfinished.replace(path)
