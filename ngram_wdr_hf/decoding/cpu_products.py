"""Matrix products of a few tokens, in the order that a CPU computes fastest."""

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

# The numbers of vectors that products are reordered for, in several threads and in one. More vectors are left to
# PyTorch, which rearranges the weights for them; in one thread, a single one is as fast either way.
SEVERAL_THREADS, ONE_THREAD = range(1, 9), range(2, 6)
# Weights up to this size stay in the processor's cache between forward passes: PyTorch's own order is then faster.
CACHE_BYTES = 2**25
LINEAR = F.linear


class CpuProducts(TorchFunctionMode):
    r"""
    Context in which `F.linear` on a CPU computes products with a few vectors as `(W xᵀ)ᵀ` instead of `x Wᵀ`.

    The order of the factors decides which kernel the linear algebra library uses. Where this was measured (AVX2, one
    and two threads), that of `x Wᵀ` reads the weights in one thread for a single vector, once per vector for two or
    three, and rearranges them for more; the other kernel does neither. Results differ by rounding errors. Only float32
    is affected. Seeing every PyTorch function costs about a microsecond each.
    """

    @staticmethod
    def pay_for(num_tokens: int) -> bool:
        """Return whether products with this number of vectors are computed in the other order."""
        return num_tokens in (SEVERAL_THREADS if torch.get_num_threads() > 1 else ONE_THREAD)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        # Short, as it runs for every function.
        if func is LINEAR and not kwargs:
            return linear(*args)
        return func(*args, **kwargs) if kwargs else func(*args)


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `F.linear(inputs, weight, bias)`, `(..., num_outputs)`, for `inputs` of shape `(..., d)`."""
    count = inputs.numel() // inputs.shape[-1]
    is_fast = weight.dtype == inputs.dtype == torch.float32 and weight.device.type == "cpu" and weight.is_contiguous()
    if not (is_fast and CpuProducts.pay_for(count)):
        return F.linear(inputs, weight, bias)
    rows = inputs.reshape(count, -1)  # (R, d)
    # Two vectors are faster than one.
    columns = (rows if count > 1 else rows.repeat(2, 1)).T  # (d, R)
    product = torch.mm(weight, columns)[:, :count].T.contiguous()  # (R, num_outputs)
    if bias is not None:
        product += bias
    return product.view(*inputs.shape[:-1], len(weight))
