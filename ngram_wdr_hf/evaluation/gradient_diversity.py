"""Gradient diversity of the rows of a batch (paper, eq. 12)."""

import inspect
import math
import random
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import ReformerLayer, Trainer, TrainerCallback

from ..data.errors import Unavailable
from .scores import evaluating, sum_dtype

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENT_DIVERSITY = "gradient_diversity"


def gradient_diversity(
    model: nn.Module, batch: Mapping[str, torch.Tensor], parameters: Iterable[str] | str | None = None
) -> float:
    r"""
    Compute `sum_i ||g_i||^2 / ||sum_i g_i||^2`, where `g_i` is the gradient of the model's training loss on row i. It
    is `1/n` if all n gradients are equal, 1 if they are orthogonal, more if they oppose each other, and infinite if
    they cancel out.

    The loss includes the N-gram heads and label smoothing, but no dropout. The model, its gradients and torch's random
    states do not change. Rows are processed one by one, with memory for two gradients at any batch size.

    `batch` has the arguments of the model's `forward`, labels included. `parameters` are names of the modules or
    parameters to compare, such as `["transformer.h.0", "ngram_heads"]`; all by default. Frozen parameters are left
    out, shared ones count once.
    """
    weights = _weights(model, parameters)
    device = next(model.parameters()).device
    # As in Trainer: with a cache, attention ignores the boundaries of packed documents.
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    total = [torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    sum_of_squares, gradients = 0.0, [parameter.grad for parameter in model.parameters()]
    gpus = {parameter.device for parameter in model.parameters()} - {torch.device("cpu")}
    with evaluating(model), torch.random.fork_rng(gpus), torch.enable_grad():
        for module in model.modules():
            # A model with heads needs training mode for its loss, a Reformer layer for its backward pass. Not
            # `isinstance` of our class: a checkpoint may bring its own copy.
            needs_training = hasattr(module, "ngram_heads") or isinstance(module, ReformerLayer)
            module.training = module is model or needs_training
        model.zero_grad()
        for row in zip(*(tensor.to(device).split(1) for tensor in batch.values()), strict=True):
            # Reformer's hashes are random: use the same for every row.
            torch.manual_seed(0)
            model(**dict(zip(batch, row, strict=True)), **options)["loss"].backward()
            for gradient_sum, weight in zip(total, weights, strict=True):
                if weight.grad is not None:
                    sum_of_squares += _squared_norm(weight.grad)
                    gradient_sum += weight.grad
            # Free this row's gradient before the next one is computed.
            model.zero_grad()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    if sum_of_squares == 0:
        raise Unavailable(
            "`batch` has no gradient for `parameters`: give rows with targets (labels other than -100), and "
            "parameters that the loss depends on."
        )
    square_of_sum = sum(map(_squared_norm, total))
    return sum_of_squares / square_of_sum if square_of_sum else math.inf


def _weights(model: nn.Module, names: Iterable[str] | str | None) -> list[nn.Parameter]:
    """Return the trainable parameters with these names or in modules of these names, each once; all for `None`."""
    named = [(f"{name}.", p) for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    prefixes = [""] if names is None else [f"{name}." for name in ([names] if isinstance(names, str) else names)]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name, _ in named):
            raise ValueError(f"`parameters` has {prefix[:-1]!r}, neither a trainable parameter nor a module with one.")
    return list({parameter: None for name, parameter in named if name.startswith(tuple(prefixes))})


def _squared_norm(tensor: torch.Tensor) -> float:
    """Return the sum of the squared entries. Only a chunk at a time is copied to the wider type."""
    chunks = tensor.flatten().split(2**18)
    norms = [torch.linalg.vector_norm(chunk, dtype=sum_dtype(chunk.device)) for chunk in chunks]
    return torch.stack(norms).square().sum().item()


class GradientDiversityCallback(TrainerCallback):
    r"""
    Log `gradient_diversity` before the first training step and after every `steps` steps, on a fixed batch of the
    training data: `trainer.add_callback(GradientDiversityCallback(trainer, steps=50))`. The training does not change.

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
        is_sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        if is_sharded or "layerwise" in trainer.args.optim or "lomo" in trainer.args.optim:
            raise ValueError("Gradient diversity needs all gradients: no FSDP, DeepSpeed or optimizer layer by layer.")
        self.trainer, self.steps, self.batch, self.parameters = trainer, steps, batch, parameters

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            self.on_step_end(args, state, control, **kwargs)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        # The other processes wait at their next exchange of gradients.
        if state.global_step % self.steps == 0 and state.is_world_process_zero:
            self.batch = self.batch or _training_batch(self.trainer)
            # `log` resets this flag, which Trainer may have set for its own log.
            is_log_due = control.should_log
            self.trainer.log({GRADIENT_DIVERSITY: gradient_diversity(model, self.batch, self.parameters)})
            control.should_log = is_log_due


def _training_batch(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return random training items as a batch, the same for the same seed, or an iterable dataset's first items."""
    # Not a batch of this loader: reading it would change the state of `accelerate`.
    loader, size = trainer.get_train_dataloader(), trainer.args.train_batch_size
    items = loader.dataset
    with torch.random.fork_rng([]):
        torch.manual_seed(trainer.args.seed)
        if isinstance(trainer.train_dataset, Sized):
            chosen = random.Random(trainer.args.seed).sample(range(len(items)), min(size, len(items)))
            return loader.collate_fn([items[i] for i in chosen])
        return loader.collate_fn(list(islice(items, size)))


def plot_gradient_diversity(histories: Mapping[str, Sequence[Mapping[str, float]]]) -> "Figure":
    """Plot gradient diversity over training steps, from Trainer's `state.log_history` for each model name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, history in histories.items():
        values = {row["step"]: row[GRADIENT_DIVERSITY] for row in history if GRADIENT_DIVERSITY in row}
        axes.plot([*values], [*values.values()], marker=".", label=name)
    axes.set(xlabel="step", ylabel="gradient diversity")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
