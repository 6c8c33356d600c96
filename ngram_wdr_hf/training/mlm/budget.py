"""A time budget for training, with a learning rate that depends on the time used, as in CrammedBERT."""

import time
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

# The share of the budget for warmup.
WARMUP = 0.25


def triangle(used: float) -> float:
    """
    Return the learning rate as a share of its peak, after a share `used` of the budget: it rises linearly to 1 during
    the first quarter, then falls linearly to 0.
    """
    return used / WARMUP if used < WARMUP else max(0.0, (1 - used) / (1 - WARMUP))


class Budget(TrainerCallback, ExportableState):
    r"""
    Callback that stops training when its time budget is used up, after a last evaluation and checkpoint. Evaluation
    does not count. Resuming keeps the time used. All processes follow the clock of the first.

    Args:
        minutes (`float`): The time budget, in minutes.
        seconds (`float`, *optional*, defaults to 0.0): The time used so far, in seconds.
    """

    def __init__(self, minutes: float, seconds: float = 0.0):
        self.minutes = minutes
        self.seconds = seconds
        self._last: float | None = None

    @property
    def used(self) -> float:
        """The share of the budget used so far, from 0 to 1."""
        return min(1.0, self.seconds / (60 * self.minutes))

    def state(self) -> dict[str, Any]:
        return {"args": {"minutes": self.minutes}, "attributes": {"seconds": self.seconds}}

    def on_train_begin(self, args, state, control, **kwargs):
        # Skipping batches when resuming is not training time.
        self._last = None

    def on_step_begin(self, args, state, control, **kwargs):
        self._add_elapsed_time()

    def on_step_end(self, args, state, control, **kwargs):
        self._add_elapsed_time()
        if self.used >= 1:
            control.should_training_stop = True
            control.should_evaluate = args.eval_strategy != "no"
            control.should_save = args.save_strategy != "no"

    def on_evaluate(self, args, state, control, **kwargs):

        self._last = time.monotonic()

    def _add_elapsed_time(self) -> None:
        now = time.monotonic()
        if self._last is not None:
            self.seconds = broadcast_object_list([self.seconds + now - self._last])[0]
        self._last = now
