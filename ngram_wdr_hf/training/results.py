"""What scripts do around the training: the search for an ensemble, callbacks, scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm
from transformers import EarlyStoppingCallback, PreTrainedModel

from ..data.errors import InputError
from ..evaluation.ensemble_fit import EnsembleFit, fit_ensemble
from ..evaluation.gradient_diversity import GradientDiversityCallback
from ..evaluation.scores import MaskedScores, ScoredText, Scores, by_kind, score
from ..method.ensemble import Ensemble, ensemble_arguments
from .options import EnsembleOptions, ModelOptions, RunTrainingArguments
from .presets import RECIPES
from .report import describe_model
from .run_folder import RunFolder
from .trainer import NgramTrainer, to_device, uses_fsdp

# The beginnings of the metrics that change while a frozen model's heads learn.
HEAD_METRICS = ("head", "accepted_drafts", "best_perplexity", "fitted_perplexity")
USUAL_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


@dataclass(frozen=True)
class EnsembleSearch:
    """The ensembles to look for: the values of λ in `grid` and, if `fits`, the fitted weights."""

    grid: list[float]
    fits: bool

    @classmethod
    def of(
        cls, options: EnsembleOptions, model: ModelOptions, training: RunTrainingArguments, searches: bool = True
    ) -> "EnsembleSearch":
        """Return what the options ask for; by default, what the recipe does, or nothing without `searches`."""
        by_default = RECIPES[model.recipe or model.default_recipe].ensemble if searches else None
        lambdas = model.presets[model.preset].lambdas if model.preset is not None else {}
        if options.lambda_grid is not None:
            grid = options.lambda_grid
        elif by_default is None:
            grid = [0.0]
        else:
            grid = [0.0, lambdas[model.kind]] if model.kind in lambdas else [*USUAL_GRID]
        return cls(grid, (options.ensemble or (by_default if training.do_train else None)) == "fitted")

    def trainer_options(self, model: ModelOptions, training: RunTrainingArguments) -> dict[str, Any]:
        """Set the metric of the best checkpoint in `training`, and return `NgramTrainer`'s arguments to measure it."""
        is_sharded, has_heads_only = uses_fsdp(training), model.train_mode == "heads"
        fits = (self.fits or training.requested_metric == "fitted_perplexity") and not is_sharded
        if has_heads_only:
            counts_drafts = RECIPES[model.recipe or model.default_recipe].ensemble is None and not is_sharded
            default = "accepted_drafts" if counts_drafts else "heads_loss"
        elif fits:
            default = "fitted_perplexity"
        else:
            default = "loss" if model.recipe == "paper" else "best_perplexity"
        training.select_by(default)
        metric = training.metric_for_best_model
        if has_heads_only and not metric.startswith(HEAD_METRICS):
            raise InputError(f"`--train_mode heads` never changes {metric}: set `--metric_for_best_model {default}`.")
        # The grid takes longer than the fit, and the fit is at least as good.
        needs_grid = metric == "best_perplexity" or not (fits or metric == "accepted_drafts")
        return {
            "ensembles": self.grid if needs_grid and model.kind not in ("plain", "bow") else (),
            "fits_ensemble": fits and metric != "accepted_drafts",
            "measures_acceptance": has_heads_only and not is_sharded,
            "head_loss_schedule": model.head_loss_schedule,
        }


def train(trainer: NgramTrainer, options: ModelOptions, folder: RunFolder) -> None:
    """Train, with early stopping and a measurement of gradient diversity if the options ask for them."""
    if options.patience is not None and trainer.args.load_best_model_at_end:
        trainer.add_callback(EarlyStoppingCallback(options.patience))
    if options.gradient_diversity_steps is not None:
        trainer.add_callback(GradientDiversityCallback(trainer, options.gradient_diversity_steps))
    folder.train(trainer)


def introduce(model: PreTrainedModel, counts: Mapping[str, str], training: RunTrainingArguments) -> None:
    """Print the sizes of the model and of each split, in the first process."""
    if training.process_index == 0:
        fields = describe_model(model)
        sizes = f"{fields['num_parameters']:,} parameters, {fields['head_parameters']:,} of them in the heads"
        print(f"{fields['name']}: {sizes}. Data: {', '.join(f'{split} {count}' for split, count in counts.items())}.")


def load_trained(model: PreTrainedModel, folder: RunFolder) -> PreTrainedModel:
    """Return the model saved in a folder, without an ensemble until that is chosen; without training, `model`."""
    if folder.training.do_train:
        model = type(model).from_pretrained(folder.path, ensemble_lambda=0.0, ensemble_weights=None)
    return to_device(model, folder.training)


def fit_and_score(
    model: PreTrainedModel, texts: Mapping[str, ScoredText], search: EnsembleSearch, training: RunTrainingArguments
) -> tuple[EnsembleFit | None, dict[str, Scores]]:
    """Fit weights to the validation text, if `search` asks for that, and score every text for all ensembles."""
    fit, ensembles = None, {0.0}
    if model.ngram_heads:
        ensembles |= {model.ngram_ensemble(), *search.grid}
        if search.fits and "validation" in texts:
            fit = fit_ensemble(model, texts["validation"], training.eval_batch_size)
            ensembles |= {fit.temperature, fit.ensemble}
    options = {"model": model, "ensembles": by_kind(ensembles)}
    return fit, {split: score_text(score, split, text, training, **options) for split, text in texts.items()}


def score_text(
    function: Callable[..., Any], split: str, text: ScoredText, training: RunTrainingArguments, **arguments: Any
) -> Scores | MaskedScores:
    """Score a text with `score` or `score_masked`, with a progress bar."""
    is_silent = training.disable_tqdm or training.process_index > 0
    with tqdm(desc=f"Scoring the {split} text", unit=" batches", leave=False, disable=is_silent) as bar:
        return function(text=text, batch_size=training.eval_batch_size, on_batch=bar.update, **arguments)


def set_ensemble(model: PreTrainedModel, ensemble: Ensemble) -> None:
    """Set the ensemble in the model's configuration."""
    model.config.update({"ensemble_lambda": 0.0, "ensemble_weights": None} | ensemble_arguments(ensemble))
