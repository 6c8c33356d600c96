"""Training for a given time, with a learning rate that follows the clock, as in CrammedBERT."""

import time
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

# The share of the budget in which the learning rate rises.
RISE = 0.25


def triangle(used: float) -> float:
    """The learning rate as a share of its peak, after a share `used` of the budget."""
    return used / RISE if used < RISE else max(0.0, (1 - used) / (1 - RISE))


class Budget(TrainerCallback, ExportableState):
    r"""
    Count the time that training takes, across interruptions, and end it when the budget is used up. All processes
    follow the clock of the first.

    Args:
        minutes (`float`): The budget.
        seconds (`float`, *optional*, defaults to 0.0): What has been used of it.
    """

    def __init__(self, minutes: float, seconds: float = 0.0):
        self.minutes = minutes
        self.seconds = seconds
        self._last: float | None = None

    @property
    def used(self) -> float:
        """The share of the budget that is used, up to 1."""
        return min(1.0, self.seconds / (60 * self.minutes))

    def state(self) -> dict[str, Any]:
        return {"args": {"minutes": self.minutes}, "attributes": {"seconds": self.seconds}}

    def on_train_begin(self, args, state, control, **kwargs):
        # Skipping to where an interrupted run stopped is not training time.
        self._last = None

    def on_step_begin(self, args, state, control, **kwargs):
        self._look_at_the_clock()

    def on_step_end(self, args, state, control, **kwargs):
        self._look_at_the_clock()
        if self.used >= 1:
            control.should_training_stop = True
            control.should_evaluate = args.eval_strategy != "no"
            control.should_save = args.save_strategy != "no"

    def on_evaluate(self, args, state, control, **kwargs):
        # Evaluation is not training time.
        self._last = time.monotonic()

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._last is not None:
            self.seconds = broadcast_object_list([self.seconds + now - self._last])[0]
        self._last = now
