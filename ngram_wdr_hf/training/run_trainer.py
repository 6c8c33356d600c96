"""The Trainer of all runs: a training that can go on after its end."""

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, TrainerState, get_scheduler


class RunTrainer(Trainer):
    """A [`Trainer`] that knows how long its training is, and how far an earlier part of it came."""

    @property
    def length_option(self) -> str:
        """The name of the option that sets the length of the training, `max_steps` or `num_train_epochs`."""
        return "max_steps" if self.args.max_steps > 0 else "num_train_epochs"

    def planned(self) -> float:
        """Return the length of the training in all: its number of steps, computed from the epochs if need be."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        # A data loader may draw its seed.
        with torch.random.fork_rng(devices=[]):
            return self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]

    def planned_in(self, state: TrainerState) -> float:
        """Return the length of the training, in steps, that was planned when `state` was saved."""
        return state.max_steps

    def trained(self, state: TrainerState) -> float:
        """Return how many steps of the length were trained when `state` was saved."""
        return state.global_step

    def length_text(self, length: float) -> str:
        """Return a length with its unit, as in "1,000 steps"."""
        return f"{length:,} {'step' if length == 1 else 'steps'}"

    def schedule_agrees(self, state: TrainerState) -> bool:
        """
        Return whether the steps up to `state` had the learning rates that the present length gives them. A schedule
        that depends on evaluations always agrees.
        """
        if self.planned() == self.planned_in(state):
            return True
        schedules = [self._schedule(int(steps)) for steps in (self.planned(), self.planned_in(state))]

        if not all(isinstance(schedule, LambdaLR) for schedule in schedules):
            return True
        (new,), (old,) = (schedule.lr_lambdas for schedule in schedules)
        return all(new(step) == old(step) for step in range(state.global_step))

    def _schedule(self, num_steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        args = self.args
        return get_scheduler(
            args.lr_scheduler_type,
            torch.optim.SGD([torch.zeros(())], lr=1.0),
            args.get_warmup_steps(num_steps),
            num_steps,
            args.lr_scheduler_kwargs,
        )

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        # The training's random numbers do not depend on the number of evaluations.
        with torch.random.fork_rng(devices=[]):
            return super().evaluate(*args, **kwargs)


class NewSchedule(TrainerCallback):
    """Callback that lets the first step after a checkpoint follow the new schedule; Trainer restores the old rate."""

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.last_epoch -= 1
        lr_scheduler.step()
