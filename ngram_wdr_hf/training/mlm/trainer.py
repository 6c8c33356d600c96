"""Trainer for masked language models."""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerState

from ...data.masking import MaskedBlocks, MaskedText
from ...evaluation.scores import score_masked
from ..trainer import NgramTrainer
from .budget import Budget, triangle


class EpochCallback(TrainerCallback):
    """Callback that passes the epoch to the blocks, for new masks; accelerate does so with one process only."""

    def __init__(self, blocks: MaskedBlocks):
        self.blocks = blocks

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.blocks.set_epoch(int(state.epoch))


class MlmTrainer(NgramTrainer):
    r"""
    An [`NgramTrainer`] that evaluates `MaskedText`: `eval_loss`, `eval_perplexity` and `eval_accuracy` refer to the
    masked tokens. The loss of depth 0 is logged as `masked_word_loss`.

    Args:
        budget_minutes (`float`, *optional*): Train for this many minutes; the learning rate then follows the time used
            (see `triangle`). `None` trains by Trainer's steps and schedule.
        kwargs: Arguments of [`NgramTrainer`].
    """

    main_name = "masked_word"

    def __init__(self, *args, budget_minutes: float | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        if isinstance(self.train_dataset, MaskedBlocks):
            self.add_callback(EpochCallback(self.train_dataset))
        self.budget_minutes = budget_minutes
        if budget_minutes is not None:
            self.add_callback(Budget(budget_minutes))

    @property
    def length_option(self) -> str:
        return "budget_minutes" if self.budget_minutes is not None else super().length_option

    def planned(self) -> float:
        """Return the length of the training: its number of steps, or with a time budget its minutes."""
        return super().planned() if self.budget_minutes is None else self.budget_minutes

    def planned_in(self, state: TrainerState) -> float:
        if self.budget_minutes is None:
            return super().planned_in(state)
        return state.stateful_callbacks["Budget"]["args"]["minutes"]

    def trained(self, state: TrainerState) -> float:
        if self.budget_minutes is None:
            return super().trained(state)
        # The last step exceeds the budget.
        return min(state.stateful_callbacks["Budget"]["attributes"]["seconds"] / 60, self.planned_in(state))

    def length_text(self, length: float) -> str:
        return super().length_text(length) if self.budget_minutes is None else f"{length:.3g} minutes"

    def schedule_agrees(self, state: TrainerState) -> bool:
        if self.budget_minutes is None:
            return super().schedule_agrees(state)
        return self.planned() == self.planned_in(state)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self._budget() is None or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        # Resuming restores the budget of the checkpoint. It also replaces the callback, hence `_budget` at every step.
        self._budget().minutes = self.budget_minutes
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda _: triangle(self._budget().used))
        return self.lr_scheduler

    def _budget(self) -> Budget | None:
        callbacks = self.callback_handler.callbacks
        return next((callback for callback in callbacks if isinstance(callback, Budget)), None)

    def _score(self, model: nn.Module, text: MaskedText, options: dict[str, Any]) -> dict[str, float]:
        scores = self.last_scores = score_masked(model, text, **options)
        return {
            "loss": scores.nll,
            "perplexity": scores.perplexity,
            "accuracy": scores.accuracy,
        }
