"""Gradient diversity of the rows of a batch (paper, eq. 12)."""

import inspect
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from transformers import ReformerLayer, Trainer, TrainerCallback, set_seed

from ..data.errors import Unavailable
from .modes import modes_restored
from .scores import sum_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENT_DIVERSITY = "gradient_diversity"
# Gradient entries squared at a time.
CHUNK_SIZE = 2**18


def gradient_diversity(
    model: nn.Module, batch: Mapping[str, torch.Tensor], parameters: Iterable[str] | str | None = None
) -> float:
    r"""
    Compute `sum_i ||g_i||^2 / ||sum_i g_i||^2`, where `g_i` is the gradient of the model's training loss on row i. It
    is `1/n` if all n gradients are equal, 1 if they are orthogonal, more if they oppose each other, and infinite if
    they cancel out.

    The loss includes the N-gram heads and label smoothing, but no dropout, so the same weights give the same value.
    Module modes, gradients and random states are restored. Rows are processed one by one, with memory for two
    gradients at any batch size.

    `batch` has the arguments of the model's `forward`, labels included. `parameters` are names of the modules or
    parameters to compare, such as `["transformer.h.0", "ngram_heads"]`; all by default. Frozen parameters are left
    out, shared ones count once.
    """
    weights = _weights(model, parameters)
    device = next(model.parameters()).device
    # As in Trainer: with a cache, attention ignores the boundaries of packed documents.
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    total = [torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    sum_of_squares = 0.0
    with _noiseless_training(model):
        for row in zip(*(tensor.to(device).split(1) for tensor in batch.values()), strict=True):
            # Reformer's hashes are random: use the same for every row.
            set_seed(0)
            outputs = model(**dict(zip(batch, row, strict=True)), **options)
            (outputs["loss"] if isinstance(outputs, dict) else outputs[0]).backward()
            for gradient_sum, weight in zip(total, weights, strict=True):
                if weight.grad is not None:
                    sum_of_squares += _squared_norm(weight.grad)
                    gradient_sum += weight.grad
            # Free this row's gradient before the next one is computed.
            model.zero_grad()
    if sum_of_squares == 0:
        raise Unavailable(
            "`batch` has no gradient for `parameters`: give rows with targets (labels other than -100), and "
            "parameters that the loss depends on."
        )
    square_of_sum = sum(map(_squared_norm, total))
    return sum_of_squares / square_of_sum if square_of_sum else math.inf


class GradientDiversityCallback(TrainerCallback):
    r"""
    Log `gradient_diversity` before the first training step and after every `steps` steps, on a fixed batch of the
    training data: `trainer.add_callback(GradientDiversityCallback(trainer, steps=50))`. The callback does not change
    the training. With several processes, the first one computes and the others wait.

    By default, `batch` has `per_device_train_batch_size` random items of the training data, drawn with Trainer's seed
    (the first items of an iterable dataset). `parameters` are those of [`gradient_diversity`].
    """

    def __init__(
        self,
        trainer: Trainer,
        steps: int,
        batch: Mapping[str, torch.Tensor] | None = None,
        parameters: Iterable[str] | str | None = None,
    ):
        optimizer = trainer.args.optim.value
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or "layerwise" in optimizer or "lomo" in optimizer:
            raise ValueError(
                "Gradient diversity needs all weights and gradients in one process: train without FSDP, DeepSpeed and "
                f"optimizers that update layer by layer (`optim` is {optimizer})."
            )
        self.trainer, self.steps, self.batch, self.parameters = trainer, steps, batch, parameters

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:
            self._log(state, control, model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.steps == 0:
            self._log(state, control, model)

    def _log(self, state, control, model: nn.Module) -> None:
        value = [None]
        if state.is_world_process_zero:
            self.batch = self.batch or _training_batch(self.trainer)
            value = [gradient_diversity(model, self.batch, self.parameters)]
        if self.trainer.args.world_size > 1:
            torch.distributed.broadcast_object_list(value)
        # `log` resets this flag, which Trainer may have set for its own log.
        is_log_due = control.should_log
        self.trainer.log({GRADIENT_DIVERSITY: value[0]})
        control.should_log = is_log_due


def plot_gradient_diversity(
    histories: Mapping[str, Sequence[Mapping[str, float] | tuple[int, float]]], path: str | PathLike | None = None
) -> "Figure":
    """
    Plot gradient diversity over training steps, one curve per model, as in the paper. Return the figure, and save it
    to `path` if that is given. `histories` has for each model name Trainer's `state.log_history` or pairs of step and
    value. Values that are not finite are left out.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, history in histories.items():
        pairs = [(row["step"], row.get(GRADIENT_DIVERSITY)) if isinstance(row, Mapping) else row for row in history]
        points = [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]
        if not points:
            raise Unavailable(f"`histories[{name!r}]` has no values: train with `GradientDiversityCallback`.")
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    axes.set(xlabel="step", ylabel="gradient diversity")
    axes.grid(alpha=0.3)
    axes.legend()
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _weights(model: nn.Module, names: Iterable[str] | str | None) -> list[nn.Parameter]:
    """Return the trainable parameters with these names or in modules of these names, each once; all for `None`."""
    named = [item for item in model.named_parameters(remove_duplicate=False) if item[1].requires_grad]
    if names is None:
        return list(dict.fromkeys(parameter for _, parameter in named))
    chosen = {}
    for wanted in [names] if isinstance(names, str) else names:
        matches = {parameter: None for name, parameter in named if f"{name}.".startswith(f"{wanted}.")}
        if not matches:
            raise ValueError(f"`parameters` has {wanted!r}, neither a trainable parameter nor a module with one.")
        chosen |= matches
    return list(chosen)


def _squared_norm(tensor: torch.Tensor) -> float:
    """Return the sum of the squared entries, in chunks, because each is copied to the wider type."""
    chunks = tensor.flatten().split(CHUNK_SIZE)
    norms = [torch.linalg.vector_norm(chunk, dtype=sum_dtype(chunk.device)) for chunk in chunks]
    return torch.stack(norms).square().sum().item()


@contextmanager
def _noiseless_training(model: nn.Module) -> Iterator[None]:
    """Let the model return its training loss without dropout. Restore modes, gradients and random states."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type != "cpu"}
    with _own_random_numbers(devices), modes_restored(model), torch.enable_grad():
        try:
            for module in model.modules():
                # A model with heads needs training mode for its loss, a Reformer layer for its backward pass. Not
                # `isinstance` of our class: a checkpoint may bring its own copy.
                is_needed = hasattr(module, "ngram_heads") or isinstance(module, ReformerLayer)
                module.training = module is model or is_needed
            model.zero_grad()
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


@contextmanager
def _own_random_numbers(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch (CPU and `devices`) after the `with` block."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _training_batch(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return random training items as a batch, the same for the same seed, or an iterable dataset's first items."""
    # Not a batch of this loader: reading it would change the state of `accelerate`.
    loader, size = trainer.get_train_dataloader(), trainer.args.train_batch_size
    items = loader.dataset
    with _own_random_numbers():
        set_seed(trainer.args.seed)
        if isinstance(trainer.train_dataset, Sized):
            return loader.collate_fn([items[i] for i in random.sample(range(len(items)), min(size, len(items)))])
        return loader.collate_fn(list(islice(items, size)))
