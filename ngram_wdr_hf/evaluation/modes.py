"""Whether the parts of a model are in training or in evaluation."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Whatever is done to the modes here, each part has its own again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """All parts are in evaluation here."""
    with modes_restored(model):
        model.eval()
        yield
