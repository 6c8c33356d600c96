"""The training and evaluation modes of a model's modules."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Restore every module's training or evaluation mode after the `with` block, whatever is done in it."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set all modules to evaluation mode in the `with` block, and restore their modes afterwards."""
    with modes_restored(model):
        model.eval()
        yield
