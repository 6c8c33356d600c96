"""Gradient diversity: how differently the rows of a batch pull at the weights (paper, eq. 12)."""

import inspect
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import islice
from os import PathLike

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn
from transformers import ReformerLayer, Trainer, TrainerCallback, set_seed

from ..data.errors import InputError
from .modes import modes_restored

# The name in logs.
GRADIENT_DIVERSITY = "gradient_diversity"
# Gradient entries squared at a time.
PIECE = 2**18


def gradient_diversity(
    model: nn.Module, batch: Mapping[str, torch.Tensor], parameters: Iterable[str] | str | None = None
) -> float:
    r"""
    `sum_i ||g_i||^2 / ||sum_i g_i||^2`, where `g_i` is the exact gradient of the model's own training loss of row i
    alone: `1/n` if all n rows pull in the same direction, 1 if each pulls in a direction of its own, more if they pull
    against each other, and infinite if they cancel out.

    The loss is that of training, the N-gram heads' part and label smoothing included, but without dropout, so that the
    same weights give the same value. Modes, gradients and random numbers are left as they were found.

    The rows are passed one by one, which needs memory for two gradients, whatever the size of the batch. `torch.func`
    (`vmap` over `grad`) needs it for one gradient a row, cannot pass the N-gram loss, and was no faster on stock GPT-2
    (16 rows of 64 tokens, d=128: 0.21 s against 0.19 s; of 128 tokens, d=256: 3.5 s against 2.5 s).

    Args:
        model (`nn.Module`): Any model of Transformers that makes its own loss, with N-gram heads or without.
        batch (`Mapping[str, torch.Tensor]`):
            What its `forward` takes, labels included, one row an example. A row without targets has no gradient.
        parameters (`Iterable[str]` or `str`, *optional*):
            The names of the modules or parameters whose gradients are compared, such as `["transformer.h.0",
            "ngram_heads"]`; all by default. Frozen ones are left out, shared ones count once.
    """
    weights = _weights(model, parameters)
    rows = _rows(batch)
    wide = [torch.promote_types(weight.dtype, torch.float32) for weight in weights]
    total = [torch.zeros_like(weight, dtype=dtype) for weight, dtype in zip(weights, wide, strict=True)]
    sum_of_squares = 0.0
    with _noiseless_training(model):
        for row in rows:
            # The same random numbers for every row, which Reformer's hashes depend on.
            set_seed(0)
            _loss(model, row).backward()
            for so_far, weight in zip(total, weights, strict=True):
                if weight.grad is not None:
                    sum_of_squares += _squared_norm(weight.grad)
                    so_far += weight.grad
            # Free this row's gradient before the next one is computed.
            model.zero_grad()
    if sum_of_squares == 0:
        raise ValueError(
            "No row has a gradient, so that there is nothing to compare: pass rows with targets (labels that are not "
            "-100), and parameters that the loss depends on."
        )
    square_of_sum = sum(map(_squared_norm, total))
    return sum_of_squares / square_of_sum if square_of_sum else math.inf


class GradientDiversityCallback(TrainerCallback):
    r"""
    Logs `gradient_diversity` before the first step of a training and after every `steps` of them, on a batch of the
    training data that stays the same: `trainer.add_callback(GradientDiversityCallback(trainer, steps=50))`. The values
    go where Trainer's other figures go. The training itself is the same with and without, bit for bit. With several
    processes, the first one computes and the others wait.

    Args:
        trainer ([`Trainer`]): Whose training it is, stock or ours.
        steps (`int`): After how many steps to log.
        batch (`Mapping[str, torch.Tensor]`, *optional*):
            The batch; by default, `per_device_train_batch_size` items of the training data, drawn at random by
            Trainer's seed (the first ones of data that can only be read in order).
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
                "Gradient diversity needs all weights in one process, and FSDP and DeepSpeed share them out: train "
                "without them, or without measuring it."
            )
        optimizer = trainer.args.optim.value
        if "layerwise" in optimizer or "lomo" in optimizer:
            raise InputError(
                f"The optimizer {optimizer} moves the weights at every backward pass, those that measure "
                "gradient diversity included: choose another, or train without measuring it."
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
        # `log` resets this flag, and Trainer's own log may be due.
        is_log_due = control.should_log
        self.trainer.log({GRADIENT_DIVERSITY: value[0]})
        control.should_log = is_log_due


def plot_gradient_diversity(
    histories: Mapping[str, Sequence[Mapping[str, float] | tuple[int, float]]],
    path: str | PathLike | None = None,
) -> Figure:
    r"""
    Gradient diversity over the steps of training, a curve a model, as in the paper's figure.

    Args:
        histories (`Mapping[str, Sequence]`):
            By the models' names, Trainer's `state.log_history` or pairs of a step and a value. What is not finite is
            left out.
        path (`str` or `PathLike`, *optional*): Where to save the figure.
    """
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, history in histories.items():
        points = [
            (entry["step"], entry.get(GRADIENT_DIVERSITY)) if isinstance(entry, Mapping) else entry
            for entry in history
        ]
        points = [(step, value) for step, value in points if value is not None and math.isfinite(value)]
        if not points:
            raise ValueError(f"The history of {name} has no gradient diversity: train it with the callback.")
        axes.plot(*zip(*points, strict=True), marker=".", label=name)
    axes.set(xlabel="step", ylabel="gradient diversity")
    axes.grid(alpha=0.3)
    axes.legend()
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _weights(model: nn.Module, names: Iterable[str] | str | None) -> list[nn.Parameter]:
    """The trainable parameters with these names or in modules of these names, each once."""
    # Shared weights have several names.
    trainable = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    if not trainable:
        raise ValueError("The model has no trainable parameters: `requires_grad_` makes some of them so.")
    if any(parameter.is_meta or hasattr(parameter, "placements") for parameter in trainable.values()):
        raise ValueError("The model's weights are offloaded or sharded: gradient diversity needs them whole.")
    if names is None:
        return list(dict.fromkeys(trainable.values()))
    chosen = {}
    for wanted in [names] if isinstance(names, str) else names:
        found = {parameter: None for name, parameter in trainable.items() if f"{name}.".startswith(f"{wanted}.")}
        if not found:
            raise ValueError(
                f"The model has no trainable parameter of the name {wanted!r}, nor a module with any: see "
                "`model.named_parameters()`."
            )
        chosen |= found
    if not chosen:
        raise ValueError("`parameters` is empty: name some, or leave it out for all of them.")
    return list(chosen)


def _rows(batch: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The batch as batches of one row."""
    if not isinstance(batch, Mapping):
        raise ValueError(f"A batch is what `forward` takes, by name, as in {{'input_ids': ...}}: not a {type(batch)}.")
    others = [name for name, value in batch.items() if not isinstance(value, torch.Tensor) or value.ndim == 0]
    if others:
        raise ValueError(f"A batch has tensors with a row for each example, and {', '.join(others)} is none.")
    sizes = {name: len(tensor) for name, tensor in batch.items()}
    if not any(sizes.values()):
        raise ValueError("The batch is empty: pass at least one row.")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"The tensors of a batch must have equally many rows, got {listed}.")
    return [dict(zip(batch, row, strict=True)) for row in zip(*(t.split(1) for t in batch.values()), strict=True)]


def _loss(model: nn.Module, row: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of a row, from the model itself."""
    device = next(model.parameters()).device
    # As in Trainer: with a cache, attention does not look for the boundaries of packed documents.
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    outputs = model(**{name: tensor.to(device) for name, tensor in row.items()}, **options)
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs[0]
    if loss is None or loss.ndim > 0:
        raise ValueError("The model gives no loss for this batch: add `labels`.")
    return loss


def _squared_norm(tensor: torch.Tensor) -> float:
    """The squared norm, summed in float64."""
    # Apple's GPUs have no float64.
    dtype = torch.float32 if tensor.device.type == "mps" else torch.float64
    # In pieces, because each is copied to the wider type.
    norms = [torch.linalg.vector_norm(piece, dtype=dtype) for piece in tensor.flatten().split(PIECE)]
    return torch.stack(norms).square().sum().item()


@contextmanager
def _noiseless_training(model: nn.Module) -> Iterator[None]:
    """The training loss without dropout; afterwards, modes, gradients and random numbers are restored."""
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
    """Our models choose their loss by the mode; Reformer's layers, which have no dropout, need it for the backward."""
    # Not `isinstance`: a checkpoint may bring its own copy of our code.
    return hasattr(module, "ngram_heads") or isinstance(module, ReformerLayer)


@contextmanager
def _own_random_numbers(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Random numbers drawn here do not change those drawn afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _training_batch(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A batch of the training data, collated by Trainer, the same for the same seed."""
    dataset, size = trainer.train_dataset, trainer.args.train_batch_size
    collate = trainer._get_collator_with_removed_columns(trainer.data_collator)
    with _own_random_numbers():
        set_seed(trainer.args.seed)
        if isinstance(dataset, Sized):
            places = random.sample(range(len(dataset)), min(size, len(dataset)))
            return collate([dataset[i] for i in places])
        return collate(list(islice(dataset, size)))
