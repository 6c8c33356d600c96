"""The N-gram training loss, computed chunk by chunk: the logits of a few hundred rows are alive at a time."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.nn import LinearCrossEntropyOptions

from .documents import IGNORE_INDEX
from .heads import NgramPredictions
from .logits import LogitLayer, LogitShape

# Logits alive at a time. Large enough for the matrix products to be efficient, small beside a model's activations. On
# accelerators, where weights are in half precision as a rule, fewer and larger chunks also add up more exactly.
CHUNK_ELEMENTS = 2**24
CHUNK_ELEMENTS_ELSEWHERE = 2**26
LARGEST_CHUNK = 1024
CACHED_ELEMENTS = 2**20
# Gradients of a mean over many rows are too small for float16.
FLOAT16_SCALE = 1024.0


def head_weights(ngram_size: int) -> list[float]:
    """The weight of the next word and of each head in the loss: a half for the first, a half shared by the others."""
    if ngram_size == 1:
        return [1.0]
    return [0.5] + [0.5 / (ngram_size - 1)] * (ngram_size - 1)


def ngram_loss(
    predictions: NgramPredictions,
    layer: LogitLayer,
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    `1/2 L_0 + 1/(2(N-1)) sum_n L_n`, every `L_n` a sum over its targets divided by one common count.

    Args:
        predictions ([`NgramPredictions`]): Those of the next token and of each head, with their targets.
        layer ([`LogitLayer`]): The logit layer, shared by all.
        label_smoothing (`float`, *optional*, defaults to 0.0): The ε of label smoothing.
        num_items_in_batch (`int` or `torch.Tensor`, *optional*):
            The count to divide by, as Trainer gives it; the number of next-word targets by default.

    Returns:
        The loss, and a detached `(N,)` tensor: the unsmoothed mean NLL of the next word and of each head.
    """
    rows = [layer.scaled(prediction.reshape(-1, prediction.shape[-1])) for prediction in predictions.embeddings]
    targets = [target.reshape(-1) for target in predictions.targets]
    rows, weight, bias = _autocast([*rows, layer.weight, layer.scaled_bias], len(rows))
    if not torch.is_grad_enabled():
        # An autograd function still sees which tensors want gradients, and would find them for nothing.
        rows, weight, bias = [row.detach() for row in rows], weight.detach(), None if bias is None else bias.detach()

    weights = head_weights(len(rows))
    counts = torch.stack([(target != IGNORE_INDEX).sum() for target in targets])
    divisor = at_least_one(counts[0] if num_items_in_batch is None else num_items_in_batch, weight.device)
    if isinstance(divisor, torch.Tensor):
        # A number divided by a tensor of integers is in float32, whatever the precision of everything else.
        divisor = divisor.to(torch.promote_types(weight.dtype, torch.float32))
    cap = None if layer.shape.soft_cap is None else (layer.shape, label_smoothing)
    loss, nll_sums = _ChunkedNLL.apply(weight, bias, cap, weights, divisor, targets, *rows)
    if label_smoothing and cap is None:
        loss = loss + label_smoothing / divisor * _smoothing(rows, targets, weights, weight, bias)
    return loss, nll_sums / counts.clamp(min=1)


def at_least_one(count: int | torch.Tensor, device: torch.device) -> int | torch.Tensor:
    """A count to divide by: a batch without targets has a loss of 0, not of 0/0."""
    if isinstance(count, torch.Tensor):
        return count.to(device).clamp(min=1).reshape(())
    return max(count, 1)


@torch.no_grad()
def mean_nll(predictions: NgramPredictions, layer: LogitLayer) -> torch.Tensor:
    """The second value of `ngram_loss` alone, without gradients; empty for no predictions."""
    return ngram_loss(predictions, layer)[1] if predictions.embeddings else layer.weight.new_empty(0)


@torch.no_grad()
def grid_nll(predictions: NgramPredictions, lambdas: Sequence[float], layer: LogitLayer) -> torch.Tensor:
    r"""
    The sum of the next token's NLL under the ensemble, for every λ: as the mix is linear, so are its logits (before a
    soft cap), and two products with the output embedding serve all of them.

    Args:
        predictions ([`NgramPredictions`]): With targets.
        lambdas (`Sequence[float]`): The values of λ.
        layer ([`LogitLayer`]): The logit layer.

    Returns:
        `torch.Tensor` of shape `(len(lambdas),)`.
    """
    main, past, targets = predictions.main, predictions.ensemble(1.0), predictions.targets[0]
    is_target = targets != IGNORE_INDEX
    weight, bias = layer.weight, layer.scaled_bias
    sums = torch.zeros(len(lambdas), dtype=torch.promote_types(main.dtype, torch.float32), device=main.device)
    # Every λ goes over the logits again: on a CPU, they should still be in its cache.
    size = max(64, CACHED_ELEMENTS // weight.shape[0]) if main.device.type == "cpu" else chunk_rows(weight)
    chunks = (rows.split(size) for rows in (main[is_target], past[is_target], targets[is_target]))
    for main_rows, past_rows, target in zip(*chunks, strict=True):
        main_logits = F.linear(layer.scaled(main_rows), weight, bias).to(sums.dtype)
        past_logits = F.linear(layer.scaled(past_rows), weight, bias).to(sums.dtype)
        for i, value in enumerate(lambdas):
            logits = layer.shape.cap(torch.lerp(main_logits, past_logits, value))
            sums[i] += F.cross_entropy(logits, target, reduction="sum")
    return sums


def chunk_rows(weight: torch.Tensor) -> int:
    """How many rows of logits to compute at a time."""
    elements = CHUNK_ELEMENTS if weight.device.type == "cpu" else CHUNK_ELEMENTS_ELSEWHERE
    return max(1, min(LARGEST_CHUNK, elements // weight.shape[0]))


class _ChunkedNLL(torch.autograd.Function):
    """
    The weighted sum of the heads' NLL sums over the divisor, and the sums themselves (not differentiable).

    `linear_cross_entropy` finds the gradients together with the loss. Doing so head after head and adding the weight
    gradients up here keeps one `(vocab_size, d)` gradient for all heads instead of one for each.
    """

    @staticmethod
    @torch.compiler.disable
    def forward(ctx, weight, bias, cap, weights, divisor, targets, *rows):
        needs_weight, needs_bias, _, _, _, _, *needs_rows = ctx.needs_input_grad
        weight = weight.detach().requires_grad_(needs_weight)
        bias = None if bias is None else bias.detach().requires_grad_(needs_bias)
        # The gradients are kept as those of a mean, which no dtype is too narrow for, times what float16 needs.
        ctx.scale = FLOAT16_SCALE if weight.dtype == torch.float16 else 1.0
        total, nll_sums, row_grads, weight_grad, bias_grad = 0.0, [], [], None, None
        for row, target, head_weight, needs_row in zip(rows, targets, weights, needs_rows, strict=True):
            leaves = [row.detach().requires_grad_(needs_row), weight, bias]
            factor = ctx.scale * head_weight / divisor
            if cap is None:
                nll_sum, grads = _nll_and_gradients(leaves, target, factor)
                loss_sum = nll_sum
            else:
                nll_sum, loss_sum, grads = _capped_nll_and_gradients(leaves, target, factor, *cap)
            total = total + head_weight * loss_sum
            nll_sums.append(nll_sum)
            row_grads.append(grads[0])
            weight_grad, bias_grad = _add_to(weight_grad, grads[1]), _add_to(bias_grad, grads[2])
            # Let go of this head's gradient before the next one's is made.
            del grads
        ctx.save_for_backward(weight_grad, bias_grad, *row_grads)
        nll_sums = torch.stack(nll_sums)
        ctx.mark_non_differentiable(nll_sums)
        return total / divisor, nll_sums

    @staticmethod
    def backward(ctx, grad_total, _):
        weight_grad, bias_grad, *row_grads = (
            None if grad is None else grad * (grad_total / ctx.scale).to(grad.dtype) for grad in ctx.saved_tensors
        )
        return weight_grad, bias_grad, None, None, None, None, *row_grads


def _nll_and_gradients(
    leaves: list[torch.Tensor | None], target: torch.LongTensor, factor: float | torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The NLL sum of a head's rows, and its gradients times `factor` for rows, output embedding and bias."""
    rows, weight, bias = leaves
    options = LinearCrossEntropyOptions(batch_chunk_size=chunk_rows(weight), chunking_method=None)
    # A sum in half precision overflows or loses its digits; there the rows are summed in float32.
    reduction = "sum" if weight.dtype in (torch.float32, torch.float64) else "none"
    with torch.enable_grad():
        nll = F.linear_cross_entropy(
            rows, weight, target, linear_bias=bias, reduction=reduction, ignore_index=IGNORE_INDEX, options=options
        )
        nll = nll if reduction == "sum" else nll.float().sum()
    return nll.detach(), _gradients(nll, leaves, factor)


def _capped_nll_and_gradients(
    leaves: list[torch.Tensor | None],
    target: torch.LongTensor,
    factor: float | torch.Tensor,
    shape: LogitShape,
    label_smoothing: float,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor | None]]:
    """
    The same for logits with a soft cap, which no fused function knows; also the sum with label smoothing, whose
    gradients these are: with the cap, it needs all logits.
    """
    rows, weight, bias = leaves
    size = chunk_rows(weight)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    nll_sum = loss_sum = torch.zeros((), dtype=dtype, device=weight.device)
    row_grads, weight_grad, bias_grad = [], None, None
    for piece, wanted in zip(rows.detach().split(size), target.split(size), strict=True):
        piece.requires_grad_(rows.requires_grad)
        with torch.enable_grad():
            logits = shape.cap(F.linear(piece, weight, bias).to(dtype))
            nll = F.cross_entropy(logits, wanted, ignore_index=IGNORE_INDEX, reduction="sum")
            loss = nll
            if label_smoothing:
                is_target = wanted != IGNORE_INDEX
                chosen = logits.gather(1, wanted.clamp(min=0)[:, None])[:, 0]
                loss = nll + label_smoothing * ((chosen - logits.mean(1)) * is_target).sum()
        grads = _gradients(loss, [piece, weight, bias], factor)
        nll_sum, loss_sum = nll_sum + nll.detach(), loss_sum + loss.detach()
        row_grads.append(grads[0])
        # A sum of many small terms in half precision would lose their digits.
        weight_grad = _add_to(weight_grad, grads[1], dtype)
        bias_grad = _add_to(bias_grad, grads[2], dtype)
    row_grad = torch.cat(row_grads) if rows.requires_grad else None
    weight_grad, bias_grad = (grad if grad is None else grad.to(weight.dtype) for grad in (weight_grad, bias_grad))
    return nll_sum, loss_sum, [row_grad, weight_grad, bias_grad]


def _gradients(
    loss: torch.Tensor, leaves: list[torch.Tensor | None], factor: float | torch.Tensor
) -> list[torch.Tensor | None]:
    """The gradients of `loss` times `factor`; `None` for leaves that want none."""
    wanted = [i for i, leaf in enumerate(leaves) if leaf is not None and leaf.requires_grad]
    grads: list[torch.Tensor | None] = [None] * len(leaves)
    if wanted:
        found = torch.autograd.grad(loss, [leaves[i] for i in wanted], torch.ones_like(loss) * factor)
        for i, grad in zip(wanted, found, strict=True):
            grads[i] = grad
    return grads


def _add_to(
    total: torch.Tensor | None, term: torch.Tensor | None, dtype: torch.dtype | None = None
) -> torch.Tensor | None:
    if total is None:
        return term if term is None or dtype is None else term.to(dtype)
    return total.add_(term)


def _smoothing(rows, targets, weights, weight, bias) -> torch.Tensor:
    """
    What label smoothing adds to the weighted NLL sum, divided by ε: the target's logit minus the mean logit, which
    needs two dot products a row and no further logits.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    counted = torch.cat([(target != IGNORE_INDEX).to(dtype) * w for target, w in zip(targets, weights, strict=True)])
    rows, targets = torch.cat(rows) * counted[:, None], torch.cat(targets).clamp(min=0)
    target_logits = (rows * F.embedding(targets, weight)).sum(dtype=dtype)
    mean_logits = (rows.sum(0, dtype=dtype) * weight.mean(0, dtype=dtype)).sum()
    if bias is not None:
        target_logits = target_logits + (counted * (bias[targets] - bias.mean())).sum(dtype=dtype)
    return target_logits - mean_logits


def _autocast(tensors: list[torch.Tensor | None], num_rows: int):
    """Under `torch.autocast`, brings everything to the precision that matrix products have there."""
    device_type = tensors[0].device.type
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        tensors = [tensor if tensor is None else tensor.to(dtype) for tensor in tensors]
    return tensors[:num_rows], tensors[num_rows], tensors[num_rows + 1]
