"""Matrix products of a few tokens, in the order that a CPU computes fastest."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

# Products with more vectors than this are left to PyTorch.
MOST_TOKENS = 8


class FewTokenProducts:
    r"""
    Context in which the linear layers of a model on a CPU compute products with up to `MOST_TOKENS` vectors as
    `(W xᵀ)ᵀ` instead of `x Wᵀ`. The order of the factors decides which kernel of the linear algebra library is used:
    that of `x Wᵀ` reads the weights of a single token in one thread and at half the speed of the memory, and those of
    two to four tokens vector by vector, or after rearranging them. Results differ by rounding errors.

    Layers that are wrapped, quantized, not in float32 or part of a compiled model are left as they are.

    Args:
        model (`nn.Module`): The model.
    """

    def __init__(self, model: nn.Module):
        is_compiled = "forward" in vars(model) or model._compiled_call_impl is not None
        self.layers = [] if is_compiled else [layer for layer in model.modules() if _is_plain(layer)]

    def __enter__(self) -> None:
        for layer in self.layers:
            layer.forward = partial(multiply_layer, layer)

    def __exit__(self, *exception) -> None:
        for layer in self.layers:
            # Another thread may have been faster.
            vars(layer).pop("forward", None)


def multiply_layer(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """Return the output of a linear layer; arguments as in `multiply`."""
    return multiply(inputs, layer.weight, layer.bias)


def multiply(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    r"""
    Return `F.linear(inputs, weight, bias)`.

    Args:
        inputs (`torch.Tensor` of shape `(..., d)`): The vectors.
        weight (`torch.Tensor` of shape `(num_outputs, d)`): The weights.
        bias (`torch.Tensor` of shape `(num_outputs,)`, *optional*): The bias.
    """
    rows = inputs.reshape(-1, inputs.shape[-1])  # (R, d)
    count = len(rows)
    if not 0 < count <= MOST_TOKENS or not _is_fast(weight) or inputs.dtype != weight.dtype:
        return F.linear(inputs, weight, bias)
    # Two vectors are faster than one.
    columns = (rows if count > 1 else rows.repeat(2, 1)).T  # (d, R)
    product = torch.mm(weight, columns)[:, :count].T  # (R, num_outputs)
    product = product.contiguous() if bias is None else product + bias
    return product.reshape(*inputs.shape[:-1], len(weight))


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and "forward" not in vars(layer) and _is_fast(layer.weight)


def _is_fast(weight: torch.Tensor) -> bool:
    """Return whether the order of the factors matters for these weights."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()
