"""What a trainer adds for the heads: their loss weights over time, the seed of their sample, clipping of their own."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import TrainerCallback

HEAD_LOSS_SCHEDULES = ("constant", "linear", "curriculum")


def head_factors(schedule: str, step: int, max_steps: int, num_heads: int) -> Sequence[float] | None:
    """
    Return the factors of the heads' loss weights after `step` of `max_steps` training steps, head 1 first; `None` if
    all are 1. The schedule is `"constant"`; `"linear"`, from 1 down to 0 at the end; or `"curriculum"`, which starts
    without heads and adds one after each N-th part of the training.
    """
    if schedule == "linear":
        return [1.0 - step / max_steps] * num_heads
    if schedule == "curriculum":
        return [float(step * (num_heads + 1) >= n * max_steps) for n in range(1, num_heads + 1)]
    return None


class HeadSchedule(TrainerCallback):
    """
    Callback that sets the heads' loss weights, by a schedule of [`head_factors`], and the seed of their sample of
    positions before every step. Both depend on the step only, so a resumed training continues exactly. Add it to a
    stock [`Trainer`] if the model has a `head_sample_rate` below 1; [`NgramTrainer`] and [`NgramSFTTrainer`] do.
    """

    def __init__(self, schedule: str = "constant"):
        if schedule not in HEAD_LOSS_SCHEDULES:
            raise ValueError(f"`schedule` must be one of {', '.join(HEAD_LOSS_SCHEDULES)}, got {schedule!r}.")
        self.schedule = schedule
        self.models: list[nn.Module] = []

    def on_train_begin(self, args, state, control, model: nn.Module | None = None, **kwargs):
        # Found inside wrappers such as PEFT's, and not by class: remote code has its own.
        self.models = [module for module in model.modules() if hasattr(module, "ngram_head_factors")]

    def on_step_begin(self, args, state, control, **kwargs):
        step = state.global_step
        for model in self.models:
            # A number would be a constant of compiled code.
            model.ngram_step = torch.tensor(step)
            model.ngram_head_factors = head_factors(self.schedule, step, state.max_steps, model.config.ngram_size - 1)

    def on_train_end(self, args, state, control, **kwargs):
        for model in self.models:
            model.ngram_head_factors = None


class SeparateClippingMixin:
    """Trainer mixin: free heads (`head_gradient=0`) are clipped apart, and so do not change the model's training."""

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor | None:
        config = self.accelerator.unwrap_model(self.model).config
        if config.ngram_size == 1 or config.head_gradient > 0:
            return super()._clip_grad_norm(model)
        trunk, heads = [], []
        for name, parameter in model.named_parameters():
            (heads if "ngram_heads." in name else trunk).append(parameter)
        max_norm = self.args.max_grad_norm
        norm_of_heads = self.accelerator.clip_grad_norm_(heads, max_norm)
        # With a frozen trunk, only the heads have gradients.
        if not any(parameter.requires_grad for parameter in trunk):
            return norm_of_heads
        # Accelerate first divides all gradients by the loss scale of float16, which is possible only once.
        is_scaled = self.accelerator.scaler is not None
        clip = nn.utils.clip_grad_norm_ if is_scaled else self.accelerator.clip_grad_norm_
        return clip(trunk, max_norm)
