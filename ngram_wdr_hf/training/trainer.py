"""The stock Trainer, with head losses in its log and an exact evaluation."""

import math
import operator
import os
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch
from accelerate.utils import broadcast
from torch import nn
from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from ..evaluation.ensemble_fit import fit_ensemble
from ..evaluation.head_acceptance import head_acceptance
from ..evaluation.scores import MaskedScores, ScoredText, Scores, by_kind, score
from ..method.ensemble import Ensemble
from .head_schedule import HeadSchedule, SeparateClippingMixin

# Enough tokens to compare checkpoints by their fitted ensemble; the final one is fitted to the whole text.
FITTED_TOKENS = 5_000


def loss_names(ngram_size: int, main_name: str = "next_word") -> list[str]:
    """Return the names of the losses by depth: `next_word_loss`, `head_1_loss`, ..., `ngram_size` in all."""
    return [f"{main_name}_loss", *(f"head_{n}_loss" for n in range(1, ngram_size))]


def uses_fsdp(training: TrainingArguments) -> bool:
    """Return whether FSDP is on, by Trainer's option `--fsdp` or by the configuration of `accelerate launch`."""
    return bool(training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true"


def to_device(model: nn.Module, training: TrainingArguments) -> nn.Module:
    """Move a loaded model to its device and return it. With FSDP, only the first process has loaded its weights."""
    model = model.to(training.device)
    if uses_fsdp(training) and training.world_size > 1:
        with torch.no_grad():
            broadcast([*model.parameters(), *model.buffers()])
    return model


class ResumableTrainer(Trainer):
    """A [`Trainer`] for `RunFolder.train`. A loss that is not finite is a `FloatingPointError`."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # With float16, steps whose gradients overflow are skipped.
        may_overflow = "loss" in logs and self.accelerator.scaler is not None
        if not may_overflow and not math.isfinite(logs.get("loss", logs.get("eval_loss", 0.0))):
            step = self.state.global_step
            raise FloatingPointError(f"The loss is not finite in step {step}: lower the learning rate.")
        super().log(logs, start_time)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        # The training's random numbers do not depend on the number of evaluations.
        with torch.random.fork_rng(devices=[]):
            return super().evaluate(*args, **kwargs)

    def num_steps(self) -> int:
        """Return the length of the training in steps, computed from the epochs if need be."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        # A data loader may draw its seed.
        with torch.random.fork_rng(devices=[]):
            return self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]

    def load_result(self, checkpoint: Path) -> None:
        """Load state and result of a training that ended with `checkpoint`: the best checkpoint, or this one."""
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        best = self.state.best_model_checkpoint if self.args.load_best_model_at_end else None
        # The folder may have been moved.
        self._load_from_checkpoint(str(checkpoint if best is None else checkpoint.with_name(Path(best).name)))


class NgramTrainer(SeparateClippingMixin, ResumableTrainer):
    r"""
    A [`Trainer`] that also logs the loss of each depth, averaged over targets: `next_word_loss`, `head_1_loss`, ....
    It evaluates `EvaluationWindows` and `PairBatches` exactly for many ensembles in one pass: `eval_loss` and
    `eval_perplexity` are those of the model's own ensemble, `eval_best_perplexity` is that of `eval_best_lambda`, and
    `eval_heads_loss` the mean loss of the heads. Other datasets are evaluated as in [`Trainer`].
    `last_scores` holds the scores of the last exact evaluation. A loss that is not finite ends the training with a
    `FloatingPointError`.

    Args:
        ensembles (`Sequence[Ensemble]`, *optional*): The ensembles to evaluate besides the model's own, values of λ or
            tuples of weights.
        fits_ensemble (`bool`, *optional*, defaults to `False`): Whether to fit weights to a sample of the text and log
            `eval_fitted_perplexity`. Without heads, that is the model's own perplexity.
        measures_acceptance (`bool`, *optional*, defaults to `False`): Whether to log the acceptance rate of the heads'
            greedy drafts on a sample of the text, `eval_head_1_acceptance`, ..., and the mean number of accepted
            drafts per forward pass if all heads draft, `eval_accepted_drafts`. Not with FSDP, which shards the model.
        head_loss_schedule (`str`, *optional*, defaults to `"constant"`): See [`head_factors`].
        kwargs: Arguments of [`Trainer`].
    """

    # The name of depth 0 in the logs.
    main_name = "next_word"

    def __init__(
        self,
        *args,
        ensembles: Sequence[Ensemble] = (),
        fits_ensemble: bool = False,
        measures_acceptance: bool = False,
        head_loss_schedule: str = "constant",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.add_callback(HeadSchedule(head_loss_schedule))
        self.ensembles = list(ensembles)
        self.fits_ensemble = fits_ensemble
        self.measures_acceptance = measures_acceptance
        self.last_scores: Scores | MaskedScores | None = None
        # Sums since the last log: NLLs and numbers of targets by depth, the bag-of-words loss, and steps.
        self._head_losses = self._head_counts = self._bow_loss = self._steps_to_log = 0.0
        if self.pop_callback(ProgressCallback):
            self.add_callback(ProgressWithLogLines)
        elif self.pop_callback(PrinterCallback):
            self.add_callback(LogLines)

    def compute_loss(self, model: nn.Module, inputs: dict, return_outputs: bool = False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            # Batches have different numbers of targets, and a head may have none.
            counts = outputs.head_counts.to(outputs.head_losses.dtype)
            self._head_losses = self._head_losses + outputs.head_losses * counts
            self._head_counts = self._head_counts + counts
            if getattr(outputs, "bow_loss", None) is not None:
                self._bow_loss = self._bow_loss + outputs.bow_loss
            # The last step of an epoch may have fewer micro-batches. Trainer counts them in `train` only.
            steps = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
            self._steps_to_log += 1 / steps
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # Only Trainer's own logs of the training loss have a start, and these are made in all processes.
        if start_time is not None and self._steps_to_log:
            sums, counts = self.accelerator.reduce(torch.stack([self._head_losses, self._head_counts]))
            names = loss_names(len(sums), self.main_name)
            means = zip(names, (sums / counts.clamp(min=1)).tolist(), counts.tolist(), strict=True)
            logs.update({name: mean for name, mean, count in means if count})
            if isinstance(self._bow_loss, torch.Tensor):
                # Each loss is already divided by the number of targets in all micro-batches.
                logs["bow_loss"] = self.accelerator.reduce(self._bow_loss / self._steps_to_log).item()
            self._head_losses = self._head_counts = self._bow_loss = self._steps_to_log = 0.0
        super().log(logs, start_time)

    def evaluation_loop(self, dataloader, *args, metric_key_prefix: str = "eval", **kwargs) -> EvalLoopOutput:
        text = dataloader.dataset
        if not hasattr(text, "labels_name"):
            return super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)

        def on_batch() -> None:
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

        self.callback_handler.eval_dataloader = dataloader
        metrics = self.score(self.model_wrapped if self.is_in_train else self.model, text, on_batch)
        losses = self.last_scores.head_nlls
        names = loss_names(len(losses), self.main_name)
        metrics |= {name: loss for name, loss in zip(names, losses, strict=True) if loss is not None}
        if heads := [loss for loss in losses[1:] if loss is not None]:
            metrics["heads_loss"] = sum(heads) / len(heads)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(text))

    def score(self, model: nn.Module, text: ScoredText, on_batch) -> dict[str, float]:
        """Score a text, keep the result in `last_scores`, and return the metrics to log, without their prefix."""
        unwrapped, batch_size = self.accelerator.unwrap_model(self.model), self.args.eval_batch_size
        own = fitted = unwrapped.ngram_ensemble()
        if self.fits_ensemble and unwrapped.config.ngram_size > 1:
            fitted = fit_ensemble(unwrapped, text, batch_size, FITTED_TOKENS).ensemble
        ensembles = by_kind({own, fitted, *(self.ensembles or [0.0])})
        scores = self.last_scores = score(model, text, ensembles, batch_size, on_batch)
        metrics = {"perplexity": scores.perplexity(own), "loss": scores.nll(own)}
        if self.fits_ensemble:
            metrics["fitted_perplexity"] = scores.perplexity(fitted)
        if self.measures_acceptance and unwrapped.config.ngram_size > 1:
            rates = head_acceptance(unwrapped, text, batch_size)
            metrics |= {f"head_{n}_acceptance": rate for n, rate in enumerate(rates, start=1)}
            metrics["accepted_drafts"] = sum(accumulate(rates, operator.mul))
        if self.ensembles or not self.fits_ensemble:
            best = scores.best_lambda
            metrics |= {"best_lambda": best, "best_perplexity": scores.perplexity(best)}
        return metrics


# What the lines of the log show, in this order.
LOG_FORMATS = {
    "loss": "loss {:.3f}",
    "eval_perplexity": "validation perplexity {:.2f}",
    "eval_fitted_perplexity": "fitted ensemble {:.2f}",
    "eval_best_perplexity": "best λ {:.2f}",
    "eval_accuracy": "accuracy {:.1%}",
    "eval_bleu": "BLEU {:.2f}",
    "learning_rate": "lr {:.2e}",
}


class LogLines(TrainerCallback):
    """Callback that prints a line for each log of the training loss and for each evaluation, in the first process."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not {"loss", "eval_loss"} & logs.keys():
            return
        parts = [text.format(logs[name]) for name, text in LOG_FORMATS.items() if name in logs]
        for label, pattern in (("by depth", r"(\w+_word|(eval_)?head_\d+)_loss"), ("accepted", r".*_acceptance")):
            if values := [f"{value:.3f}" for name, value in logs.items() if re.fullmatch(pattern, name)]:
                parts.append(f"{label} {' '.join(values)}")
        tqdm.write(f"step {state.global_step:>6}  {'  '.join(parts)}")


class ProgressWithLogLines(LogLines, ProgressCallback):
    """Callback that prints the lines of `LogLines` above Trainer's progress bars."""
