"""What training does to a model: its gradients, one plain step, and the largest tensor on the way."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# One step of plain gradient descent at rate 1.
ONE_STEP = {
    "per_device_train_batch_size": 8,
    "max_steps": 1,
    "learning_rate": 1.0,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "optim": "sgd",
    "report_to": "none",
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
}


def gradients(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Zero for what has none: Marian's sinusoidal positions are parameters that are never trained."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    return zeros | dict(zip(parameters, found, strict=True))


def gradients_by_backward(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same for reversible layers, which find theirs on the way and hand none to `torch.autograd.grad`."""
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def assert_same_gradients(actual: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], **tolerance) -> None:
    assert set(actual) == set(wanted)
    for name in wanted:
        torch.testing.assert_close(
            actual[name], wanted[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def change(model, trained) -> dict[str, torch.Tensor]:
    """One step of plain gradient descent at rate 1 moves each parameter by its gradient."""
    before = dict(model.named_parameters())
    return {name: (before[name] - parameter).detach() for name, parameter in trained.named_parameters()}


class LargestTensor(TorchDispatchMode):
    """Remembers the largest number of elements that an operation returned."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result
