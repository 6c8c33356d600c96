"""Trainer for masked language models."""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from ...data.masking import MaskedBlocks, MaskedText
from ...evaluation.scores import score_masked
from ..trainer import NgramTrainer
from .budget import Budget, triangle


class EpochCallback(TrainerCallback):
    """Callback that passes the epoch to the data, for new masks; accelerate does so with one process only."""

    def __init__(self, blocks: MaskedBlocks):
        self.blocks = blocks

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.blocks.set_epoch(int(state.epoch))


class MlmTrainer(NgramTrainer):
    r"""
    An [`NgramTrainer`] that evaluates `MaskedText`: `eval_loss`, `eval_perplexity` and `eval_accuracy` refer to the
    masked words.

    Args:
        budget_minutes (`float`, *optional*): Train for this long, with a learning rate by time used.
        kwargs: Arguments of [`NgramTrainer`].
    """

    main_name = "masked_word"

    def __init__(self, *args, budget_minutes: float | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        if isinstance(self.train_dataset, MaskedBlocks):
            self.add_callback(EpochCallback(self.train_dataset))
        if budget_minutes is not None:
            self.add_callback(Budget(budget_minutes))

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        if self._budget() is None or self.lr_scheduler is not None:
            return super().create_scheduler(num_training_steps, optimizer)
        # `_budget` is called at every step because resuming replaces the callback.
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda _: triangle(self._budget().used))
        return self.lr_scheduler

    def _budget(self) -> Budget | None:
        callbacks = self.callback_handler.callbacks
        return next((callback for callback in callbacks if isinstance(callback, Budget)), None)

    def _score(self, model: nn.Module, text: MaskedText, options: dict[str, Any]) -> dict[str, float]:
        scores = self.last_scores = score_masked(model, text, **options)
        return {
            "loss": scores.nll_sum / max(scores.num_masked, 1),
            "perplexity": scores.perplexity,
            "accuracy": scores.accuracy,
        }
