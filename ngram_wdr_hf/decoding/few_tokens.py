"""Matrix products of a few tokens, in the order that a CPU computes fastest."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

# Products with more vectors than this are left to PyTorch, which rearranges the weights for them. In one thread, this
# pays earlier.
MOST_TOKENS, MOST_TOKENS_OF_ONE_THREAD = 8, 5
# Weights up to this size stay in the processor's cache from one forward pass to the next. PyTorch's own order is then
# faster.
CACHE_BYTES = 2**25


class FewTokenProducts:
    r"""
    Context in which the linear layers of a model on a CPU compute products with a few vectors as `(W xᵀ)ᵀ` instead of
    `x Wᵀ`. The order of the factors decides which kernel the linear algebra library uses. On the machines where this
    was measured, that of `x Wᵀ` reads the weights in one thread for a single vector, once per vector for two or three,
    and rearranges them for more; the other kernel does neither. Results differ by rounding errors.

    Layers that are wrapped, quantized, not in float32 or part of a compiled model are left as they are. So is a model
    that is small enough for the processor's cache.

    Args:
        model (`PreTrainedModel`): The model.
    """

    def __init__(self, model: PreTrainedModel):
        is_compiled = "forward" in vars(model) or model._compiled_call_impl is not None
        is_left_alone = is_compiled or fits_in_cache(model)
        self.layers = [] if is_left_alone else [layer for layer in model.modules() if _is_plain(layer)]

    def __enter__(self) -> None:
        for layer in self.layers:
            layer.forward = partial(multiply_layer, layer)

    def __exit__(self, *exception) -> None:
        for layer in self.layers:
            # Another thread may have been faster.
            vars(layer).pop("forward", None)


def fits_in_cache(model: PreTrainedModel) -> bool:
    """Return whether all weights of a model stay in a processor's cache between forward passes."""
    return model.get_memory_footprint() <= CACHE_BYTES


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
    most = MOST_TOKENS if torch.get_num_threads() > 1 else MOST_TOKENS_OF_ONE_THREAD
    if not 0 < count <= most or not _is_fast(weight) or inputs.dtype != weight.dtype:
        return F.linear(inputs, weight, bias)
    # Two vectors are faster than one.
    columns = (rows if count > 1 else rows.repeat(2, 1)).T  # (d, R)
    product = torch.mm(weight, columns)[:, :count].T.contiguous()  # (R, num_outputs)
    if bias is not None:
        product += bias
    return product.view(*inputs.shape[:-1], len(weight))


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and "forward" not in vars(layer) and _is_fast(layer.weight)


def _is_fast(weight: torch.Tensor) -> bool:
    """Return whether the order of the factors matters for these weights."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.is_contiguous()
