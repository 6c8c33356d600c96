"""Gradients of a model, the settings of one SGD step, and the largest tensor of a computation."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# One step of plain SGD with a learning rate of 1.
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
    """Return the gradient of each parameter; zero for frozen ones, such as Marian's sinusoidal positions."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    computed = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    return zeros | dict(zip(parameters, computed, strict=True))


def gradients_by_backward(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the same by `backward`, for reversible layers that do not work with `torch.autograd.grad`."""
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
    """Return the gradients of a training of `ONE_STEP`, which are the changes of the parameters."""
    before = dict(model.named_parameters())
    return {name: (before[name] - parameter).detach() for name, parameter in trained.named_parameters()}


class LargestTensor(TorchDispatchMode):
    """A mode that records the size of the largest tensor returned by an operation."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result
