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

from ..data.errors import InputError, Unavailable
from .modes import modes_restored

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
    Module modes, gradients and random states are restored.

    The rows are processed one by one, with memory for two gradients at any batch size. `torch.func` (`vmap` over
    `grad`) needs one gradient per row, fails on the N-gram loss, and was no faster on stock GPT-2 (16 rows of 64
    tokens, d=128: 0.21 s against 0.19 s; of 128 tokens, d=256: 3.5 s against 2.5 s).

    Args:
        model (`nn.Module`): Any Transformers model that returns a loss, with or without N-gram heads.
        batch (`Mapping[str, torch.Tensor]`):
            The arguments of its `forward`, labels included. A batch row without targets has gradient 0.
        parameters (`Iterable[str]` or `str`, *optional*):
            Names of the modules or parameters to compare, such as `["transformer.h.0", "ngram_heads"]`; all by
            default. Frozen parameters are left out, shared ones count once.
    """
    weights = _weights(model, parameters)
    rows = _rows(batch)
    dtypes = [torch.promote_types(weight.dtype, torch.float32) for weight in weights]
    total = [torch.zeros_like(weight, dtype=dtype) for weight, dtype in zip(weights, dtypes, strict=True)]
    sum_of_squares = 0.0
    with _noiseless_training(model):
        for row in rows:
            # Reformer's hashes are random: use the same for every row.
            set_seed(0)
            _loss(model, row).backward()
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
    training data: `trainer.add_callback(GradientDiversityCallback(trainer, steps=50))`. The values appear in Trainer's
    log. The callback does not change the training. With several processes, the first one computes and the others wait.

    Args:
        trainer ([`Trainer`]): The trainer, stock or `NgramTrainer`.
        steps (`int`): Number of steps between two logs.
        batch (`Mapping[str, torch.Tensor]`, *optional*):
            The batch; by default, `per_device_train_batch_size` random items of the training data, drawn with
            Trainer's seed (the first items of an iterable dataset).
        parameters (`Iterable[str]` or `str`, *optional*): As in [`gradient_diversity`]; all by default.
    """

    def __init__(
        self,
        trainer: Trainer,
        steps: int,
        batch: Mapping[str, torch.Tensor] | None = None,
        parameters: Iterable[str] | str | None = None,
    ):
        if steps < 1:
            raise ValueError(f"`steps` must be at least 1, got {steps}.")
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise InputError(
                "`--gradient_diversity_steps` needs all weights in one process: leave it out, or train without FSDP "
                "and DeepSpeed."
            )
        optimizer = trainer.args.optim.value
        if "layerwise" in optimizer or "lomo" in optimizer:
            raise InputError(
                f"`--optim {optimizer}` updates the weights in every backward pass, so gradient diversity cannot be "
                "measured: choose another optimizer, or leave out `--gradient_diversity_steps`."
            )
        self.trainer = trainer
        self.steps = steps
        self.batch = batch
        self.parameters = parameters

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:
            self._log(args, state, control, model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.steps == 0:
            self._log(args, state, control, model)

    def _log(self, args, state, control, model: nn.Module) -> None:
        value = [None]
        if state.is_world_process_zero:
            if self.batch is None:
                self.batch = _training_batch(self.trainer)
            value = [gradient_diversity(model, self.batch, self.parameters)]
        if args.world_size > 1:
            torch.distributed.broadcast_object_list(value)
        # `log` resets this flag, which Trainer may have set for its own log.
        is_log_due = control.should_log
        self.trainer.log({GRADIENT_DIVERSITY: value[0]})
        control.should_log = is_log_due


def plot_gradient_diversity(
    histories: Mapping[str, Sequence[Mapping[str, float] | tuple[int, float]]],
    path: str | PathLike | None = None,
) -> "Figure":
    r"""
    Plot gradient diversity over training steps, one curve per model, as in the paper, and return the figure. Raise a
    `ValueError` if a history has no value.

    Args:
        histories (`Mapping[str, Sequence]`):
            For each model name, Trainer's `state.log_history` or pairs of step and value. Values that are not finite
            are left out.
        path (`str` or `PathLike`, *optional*): Where to save the figure; not saved by default.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, history in histories.items():
        points = [
            (entry["step"], entry.get(GRADIENT_DIVERSITY)) if isinstance(entry, Mapping) else entry
            for entry in history
        ]
        points = [(step, value) for step, value in points if value is not None and math.isfinite(value)]
        if not points:
            raise Unavailable(
                f"`histories[{name!r}]` has no gradient diversity: train with `GradientDiversityCallback`."
            )
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    axes.set(xlabel="step", ylabel="gradient diversity")
    axes.grid(alpha=0.3)
    axes.legend()
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _weights(model: nn.Module, names: Iterable[str] | str | None) -> list[nn.Parameter]:
    """
    Return the trainable parameters with these names or in modules of these names, each once; all for `None`. Raise a
    `ValueError` if a name matches none.
    """
    trainable = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    if not trainable:
        raise ValueError("`model` has no trainable parameters: enable some with `requires_grad_`.")
    if any(parameter.is_meta or hasattr(parameter, "placements") for parameter in trainable.values()):
        raise ValueError("`model` has offloaded or sharded weights: load it on one device.")
    if names is None:
        return list(dict.fromkeys(trainable.values()))
    chosen = {}
    for wanted in [names] if isinstance(names, str) else names:
        matches = {parameter: None for name, parameter in trainable.items() if f"{name}.".startswith(f"{wanted}.")}
        if not matches:
            raise ValueError(
                f"`parameters` has {wanted!r}, which is neither a trainable parameter nor a module with one: choose a "
                "name from `model.named_parameters()`."
            )
        chosen |= matches
    if not chosen:
        raise ValueError("`parameters` is empty: leave it out for all parameters.")
    return list(chosen)


def _rows(batch: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Split the batch into batches of one row. Raise a `ValueError` unless all entries are tensors of equal length."""
    if not isinstance(batch, Mapping):
        raise ValueError(f"`batch` must be a dictionary such as {{'input_ids': ...}}, got {type(batch)}.")
    invalid = [name for name, value in batch.items() if not isinstance(value, torch.Tensor) or value.ndim == 0]
    if invalid:
        raise ValueError(
            f"`batch` must have only tensors with one row per example: remove or convert {', '.join(invalid)}."
        )
    sizes = {name: len(tensor) for name, tensor in batch.items()}
    if not any(sizes.values()):
        raise ValueError("`batch` is empty: give at least one row.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"`batch` must have the same number of rows in all tensors, got {listed}.")
    return [dict(zip(batch, row, strict=True)) for row in zip(*(t.split(1) for t in batch.values()), strict=True)]


def _loss(model: nn.Module, row: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the model's loss of a batch, a scalar. Raise a `ValueError` if the model returns none."""
    device = next(model.parameters()).device
    # As in Trainer: with a cache, attention ignores the boundaries of packed documents.
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    outputs = model(**{name: tensor.to(device) for name, tensor in row.items()}, **options)
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs[0]
    if loss is None or loss.ndim > 0:
        raise ValueError("`batch` gives no loss: add `labels`.")
    return loss


def _squared_norm(tensor: torch.Tensor) -> float:
    """Return the sum of the squared entries, computed in float64 (float32 on Apple's GPUs, which lack it)."""
    # In chunks, because each is copied to the wider type.
    dtype = torch.float32 if tensor.device.type == "mps" else torch.float64
    norms = [torch.linalg.vector_norm(chunk, dtype=dtype) for chunk in tensor.flatten().split(CHUNK_SIZE)]
    return torch.stack(norms).square().sum().item()


@contextmanager
def _noiseless_training(model: nn.Module) -> Iterator[None]:
    """
    In the `with` block, let the model return its training loss without dropout, with gradients on and cleared. Restore
    modes, gradients and random states afterwards.
    """
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type != "cpu"}
    with _own_random_numbers(devices), modes_restored(model), torch.enable_grad():
        try:
            for module in model.modules():
                module.training = module is model or _needs_training_mode(module)
            model.zero_grad()
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


def _needs_training_mode(module: nn.Module) -> bool:
    """
    Return whether a module must be in training mode: a model with heads, for its training loss, or a Reformer layer,
    for its backward pass. All others stay in evaluation mode, without dropout.
    """
    # Not `isinstance`: a checkpoint may bring its own copy of the class.
    return hasattr(module, "ngram_heads") or isinstance(module, ReformerLayer)


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
    """
    Return a training batch of Trainer's batch size, collated by Trainer: random items, the same for the same seed, or
    the first items of an iterable dataset.
    """
    dataset, size = trainer.train_dataset, trainer.args.train_batch_size
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator)
    with _own_random_numbers():
        set_seed(trainer.args.seed)
        if isinstance(dataset, Sized):
            indices = random.sample(range(len(dataset)), min(size, len(dataset)))
            return collate([dataset[i] for i in indices])
        return collate(list(islice(dataset, size)))
