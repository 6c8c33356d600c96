"""The Trainer of all runs: a training that can be continued after its end, and that ends if it diverges."""

import math
from functools import cached_property

import torch
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, TrainerState, get_scheduler

# Later than any step.
NEVER = torch.iinfo(torch.int64).max


class Diverged(RuntimeError):
    """A loss, or weights, that are infinite or not numbers in `step`."""

    def __init__(self, step: int, what: str):
        super().__init__(f"The training diverged: in step {step}, {what} not finite.")
        self.step = step


class RunTrainer(Trainer):
    """
    A [`Trainer`] of a run that can be resumed or prolonged. It tells the length of the training in steps, how many of
    them were trained in a saved state, and whether the learning rates up to there are those of the present length. It
    raises a `Diverged` error instead of logging a loss or saving weights that are infinite or not numbers: in all
    processes, unless one of them logs or saves by itself.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # The first step whose loss is not finite; on the device, so that no step has to wait for it.
        self._first_bad_step = torch.tensor(NEVER, device=self.args.device)

    @property
    def length_option(self) -> str:
        """The name of the option that sets the length of the training, `max_steps` or `num_train_epochs`."""
        return "max_steps" if self.args.max_steps > 0 else "num_train_epochs"

    def planned(self) -> float:
        """Return the length of the training in all: its number of steps, computed from the epochs if need be."""
        return self._num_steps

    @cached_property
    def _num_steps(self) -> int:
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

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        # With float16, steps whose gradients overflow are skipped.
        if self.accelerator.scaler is None:
            step = self._first_bad_step.clamp(max=self.state.global_step + 1)
            self._first_bad_step = torch.where(loss.isfinite(), self._first_bad_step, step)
        return loss

    def check_finite(self) -> None:
        """Raise a `Diverged` error in all processes if the loss of a step, or a trained weight, is not finite."""
        self._check_steps()
        self._check_weights()

    def _check_steps(self) -> None:
        step = int(self.accelerator.gather(self._first_bad_step).min())
        if step != NEVER:
            raise Diverged(step, "the loss is")

    def _check_weights(self) -> None:
        trained = [parameter.detach() for parameter in self.model.parameters() if parameter.requires_grad]
        here = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in trained]
        is_bad = torch.stack([~weight.isfinite().all() for weight in here]).any()
        # All processes save shards together. Other weights are the same in each process, and one may save them alone.
        if self.is_fsdp_enabled or any(isinstance(weight, DTensor) for weight in trained):
            is_bad = self.accelerator.gather(is_bad.to(self.args.device)).any()
        if is_bad:
            raise Diverged(self.state.global_step, "weights are")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # Trainer logs in all processes: steps with the start of the training, and at its end how long it took. Others
        # may log in one process alone.
        if start_time is not None or (self.is_in_train and "train_runtime" in logs):
            self._check_steps()
        losses = [value for name, value in logs.items() if name.endswith("_loss")]
        may_overflow = "loss" in logs and self.accelerator.scaler is not None
        if not may_overflow and not all(map(math.isfinite, losses)):
            raise Diverged(self.state.global_step, "the loss is" if "loss" in logs else "the validation loss is")
        super().log(logs, start_time)

    def save_model(self, *args, **kwargs) -> None:
        self._check_weights()
        super().save_model(*args, **kwargs)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        self._check_steps()
        # The training's random numbers do not depend on the number of evaluations.
        with torch.random.fork_rng(devices=[]):
            return super().evaluate(*args, **kwargs)


class Processes(TrainerCallback):
    """Callback that records in the state of the training, and so in each checkpoint, how many processes train."""

    def on_train_begin(self, args, state, control, **kwargs):
        # Not an `ExportableState`: Trainer cannot save one that the checkpoint it resumed from does not have.
        state.stateful_callbacks["Processes"] = {"args": {}, "attributes": {"number": args.world_size}}

    @staticmethod
    def number_in(state: TrainerState) -> int | None:
        """Return the number of processes that trained a checkpoint with this state; `None` if it does not say."""
        return state.stateful_callbacks.get("Processes", {}).get("attributes", {}).get("number")


class NewSchedule(TrainerCallback):
    """Callback that lets the first step after a checkpoint follow the new schedule; Trainer restores the old rate."""

    def on_train_begin(self, args, state, control, lr_scheduler=None, **kwargs):
        lr_scheduler.last_epoch -= 1
        lr_scheduler.step()
