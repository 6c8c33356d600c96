"""The stock Trainer, with head losses in its log and an exact evaluation."""

import operator
import re
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast
from torch import nn
from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from ..data.errors import InputError
from ..evaluation.ensemble_fit import fit_ensemble
from ..evaluation.head_acceptance import head_acceptance
from ..evaluation.scores import MaskedScores, ScoredText, Scores, by_kind, score
from ..method.ensemble import Ensemble
from .common.arguments import uses_fsdp
from .common.checkpoints import check_heads
from .head_schedule import HeadSchedule, SeparateClippingMixin
from .run_trainer import RunTrainer

# Enough tokens to compare checkpoints by their fitted ensemble; the final one is fitted to the whole text.
FITTED_TOKENS = 5_000


def loss_names(ngram_size: int, main_name: str = "next_word") -> list[str]:
    """
    Return the names of the entries of `head_losses` in logs and metrics: `next_word_loss` (or that of `main_name`),
    `head_1_loss`, `head_2_loss`, ..., `ngram_size` in all.
    """
    return [f"{main_name}_loss", *(f"head_{n}_loss" for n in range(1, ngram_size))]


def to_device(model: nn.Module, training: TrainingArguments) -> nn.Module:
    """
    Move a loaded model to the device of `training` and return it. With FSDP and several processes, copy the weights
    from the first process, the only one that loads them, to all others.
    """
    model = model.to(training.device)
    if uses_fsdp(training) and training.world_size > 1:
        with torch.no_grad():
            broadcast([*model.parameters(), *model.buffers()])
    return model


def without_callback(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an evaluation that is too short for a progress bar."""
    return {name: value for name, value in options.items() if name != "on_batch"}


class NgramTrainer(SeparateClippingMixin, RunTrainer):
    r"""
    A [`Trainer`] that also logs the loss of each depth: `next_word_loss`, `head_1_loss`, ..., averaged over targets
    since the last log. It evaluates `EvaluationWindows` and `PairBatches` exactly for many ensembles in one pass:
    `eval_loss` and `eval_perplexity` are those of the model's own ensemble, `eval_best_perplexity` is that of
    `eval_best_lambda`, `eval_fitted_perplexity` that of weights fitted to a sample of the text, and `eval_heads_loss`
    is the mean loss of the heads. Other datasets are evaluated as in [`Trainer`]. `last_scores` holds the scores of
    the last exact evaluation, `None` before.

    Args:
        ensembles (`Sequence[Ensemble]`, *optional*): The ensembles to evaluate besides the model's own, values of λ or
            tuples of weights, none by default.
        fits_ensemble (`bool`, *optional*, defaults to `False`): Whether to fit weights and log
            `eval_fitted_perplexity`. Without heads, that is the model's own perplexity.
        measures_acceptance (`bool`, *optional*, defaults to `False`): Whether to log the acceptance rate of the heads'
            greedy drafts on a sample of the text, `eval_head_1_acceptance`, ..., and the mean number of accepted
            drafts per forward pass if all heads draft, `eval_accepted_drafts`. Not with FSDP, because it takes all
            weights in one process.
        head_loss_schedule (`str`, *optional*, defaults to `"constant"`):
            The heads' loss weights over time: `"constant"`, `"linear"` or `"curriculum"`. See [`head_factors`].
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
        self.head_loss_schedule = head_loss_schedule
        self.ensembles = list(ensembles)
        self.fits_ensemble = fits_ensemble
        self.measures_acceptance = measures_acceptance
        self.last_scores: Scores | MaskedScores | None = None
        # Sums since the last log: NLLs and numbers of targets by depth, the bag-of-words loss, and steps.
        self._head_losses: torch.Tensor | float = 0.0
        self._head_counts: torch.Tensor | float = 0.0
        self._bow_loss: torch.Tensor | float = 0.0
        self._steps_to_log = 0.0
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
        accelerator = self.accelerator
        options = {
            "batch_size": self.args.eval_batch_size,
            "process_index": accelerator.process_index,
            "num_processes": accelerator.num_processes,
            "add_up": accelerator.reduce,
            "on_batch": self._show_progress(dataloader),
        }
        metrics = self._score(self._evaluation_model(), text, options)
        losses = self.last_scores.head_nlls
        names = loss_names(len(losses), self.main_name)
        metrics |= {name: loss for name, loss in zip(names, losses, strict=True) if loss is not None}
        if heads := [loss for loss in losses[1:] if loss is not None]:
            metrics["heads_loss"] = sum(heads) / len(heads)
        elif metric_key_prefix == "eval" and self.args.metric_for_best_model == "heads_loss":
            raise InputError(
                "`--metric_for_best_model heads_loss` cannot be computed, because no head has a target in the "
                "validation text: mask more tokens, give a longer text, or choose another metric."
            )
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(text))

    def _score(self, model: nn.Module, text: ScoredText, options: dict[str, Any]) -> dict[str, float]:
        """
        Score a text with `options` for [`score`], keep the result in `last_scores`, and return the metrics to log,
        without the prefix `eval_`.
        """
        unwrapped = self.accelerator.unwrap_model(self.model)
        own = unwrapped.ngram_ensemble()
        ensembles = {own, *(self.ensembles or [0.0])}
        fitted = own
        if self.fits_ensemble and unwrapped.ngram_heads:
            fitted = fit_ensemble(unwrapped, text, max_tokens=FITTED_TOKENS, **without_callback(options)).ensemble
        scores = self.last_scores = score(model, text, by_kind({*ensembles, fitted}), **options)
        metrics = {"perplexity": scores.perplexity(own), "loss": scores.nll(own)}
        if self.fits_ensemble:
            metrics["fitted_perplexity"] = scores.perplexity(fitted)
        if self.measures_acceptance and unwrapped.ngram_heads:
            rates = head_acceptance(unwrapped, text, **without_callback(options))
            metrics |= {f"head_{n}_acceptance": rate for n, rate in enumerate(rates, start=1)}
            metrics["accepted_drafts"] = sum(accumulate(rates, operator.mul))
        if self.ensembles or not self.fits_ensemble:
            metrics |= {"best_lambda": scores.best_lambda, "best_perplexity": min(scores.perplexities())}
        return metrics

    def schedule_agrees(self, state: TrainerState) -> bool:
        """Return whether the steps up to `state` had the learning rates and the heads' loss weights of this length."""
        is_same_length = self.planned() == self.planned_in(state)
        return super().schedule_agrees(state) and (is_same_length or self.head_loss_schedule == "constant")

    def _evaluation_model(self) -> nn.Module:
        """
        Return the model to evaluate: as it is wrapped for training, or, if Trainer has not trained, the model itself
        on its device.
        """
        if self.accelerator._models:
            return self.model_wrapped
        return to_device(self.model, self.args)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        check_heads(self.accelerator.unwrap_model(self.model).config, Path(resume_from_checkpoint))
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _issue_warnings_after_load(self, load_result) -> None:
        # Tied weights are saved once; the others are not missing.
        tied = self.accelerator.unwrap_model(self.model).all_tied_weights_keys
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _show_progress(self, dataloader):
        def on_batch() -> None:
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

        self.callback_handler.eval_dataloader = dataloader
        return on_batch


class LogLines(TrainerCallback):
    """Callback that prints a line for each log of the training loss and for each evaluation, in the first process."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        line = _describe(state.global_step, logs)
        if state.is_world_process_zero and line:
            tqdm.write(line)


class ProgressWithLogLines(LogLines, ProgressCallback):
    """Callback that prints the lines of `LogLines` above Trainer's progress bars."""


def _describe(step: int, logs: dict[str, float]) -> str | None:
    """
    Return the line to print for a log entry with a training or evaluation loss; `None` for other entries, such as the
    summary at the end of the training.
    """
    prefix = "eval_" if "eval_loss" in logs else ""
    if f"{prefix}loss" not in logs or "train_runtime" in logs:
        return None
    heads = [value for name, value in logs.items() if re.fullmatch(rf"{prefix}head_\d+_loss", name)]
    main_name = next((name for name in logs if name.endswith("_word_loss")), None)
    by_head = ""
    if heads and main_name is not None:
        label = main_name.removeprefix(prefix).removesuffix("_loss").replace("_", " ")
        by_head = f"  {label} {logs[main_name]:.3f}"
    if heads:
        by_head += f"  heads {' '.join(f'{value:.3f}' for value in heads)}"
    if not prefix:
        rate = f"  lr {logs['learning_rate']:.2e}" if "learning_rate" in logs else ""
        return f"step {step:>6}  loss {logs['loss']:.3f}{by_head}{rate}"
    more = ""
    if "eval_accuracy" in logs:
        more = f"  accuracy {logs['eval_accuracy']:.1%}"
    elif heads and "eval_fitted_perplexity" in logs:
        more = f"  (fitted ensemble: {logs['eval_fitted_perplexity']:.2f})"
    elif heads:
        more = f"  (λ={logs['eval_best_lambda']:g}: {logs['eval_best_perplexity']:.2f})"
    accepted = [value for name, value in logs.items() if name.endswith("_acceptance")]
    drafts = f"  accepted {' '.join(f'{value:.2f}' for value in accepted)}" if accepted else ""
    return f"step {step:>6}  validation perplexity {logs['eval_perplexity']:.2f}{more}{by_head}{drafts}"
