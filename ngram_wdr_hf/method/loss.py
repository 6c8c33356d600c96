"""The N-gram training loss, computed in chunks so that only a few hundred rows of logits exist at a time."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.nn import LinearCrossEntropyOptions

from .documents import IGNORE_INDEX
from .ensemble import is_lambda
from .head_training import HeadTraining, head_weights
from .heads import NgramPredictions
from .logits import LogitLayer, LogitShape

# Logits per chunk: enough for efficient matrix products, few next to a model's activations. Accelerators usually run
# in half precision, where fewer and larger chunks also sum more exactly.
CHUNK_ELEMENTS = 2**24
CHUNK_ELEMENTS_ACCELERATOR = 2**26
LARGEST_CHUNK = 1024
CACHED_ELEMENTS = 2**20
# Gradients of a mean over many rows underflow in float16.
FLOAT16_SCALE = 1024.0


def ngram_loss(
    predictions: NgramPredictions,
    layer: LogitLayer,
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Return the weighted sum of all depths' losses, `1/2 L_0 + 1/(2(N-1)) sum_n L_n` by default, or `L_0` for N = 1.
    Depth 0 is the model's own prediction, depth n that of head n. `L_n` is the cross entropy summed over depth n's
    targets, divided by a count that is the same for all depths.

    Args:
        predictions ([`NgramPredictions`]):
            The predictions of all depths, with targets. Their `training` has the loss weights.
        layer ([`LogitLayer`]): The logit layer that all depths share.
        label_smoothing (`float`, *optional*, defaults to 0.0): The ε of label smoothing.
        num_items_in_batch (`int` or `torch.Tensor`, *optional*):
            The count to divide by, from Trainer; the number of depth 0's targets by default.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The loss, a scalar; and the mean NLL of each depth over its own targets,
        of shape `(N,)`, without label smoothing and detached. Without targets, both are 0.
    """
    rows = [layer.scaled(prediction.reshape(-1, prediction.shape[-1])) for prediction in predictions.embeddings]
    targets = [target.reshape(-1) for target in predictions.targets]
    rows, weight, bias = _autocast([*rows, layer.weight, layer.scaled_bias], len(rows))
    if not torch.is_grad_enabled():
        # `_ChunkedNLL` computes gradients for inputs with `requires_grad`, even when gradients are disabled.
        rows, weight, bias = [row.detach() for row in rows], weight.detach(), None if bias is None else bias.detach()

    training = predictions.training or HeadTraining(head_weights(len(rows)))
    # A head's sample stands for all its targets.
    weights = [training.weights[0], *(w / training.sample_rate for w in training.weights[1:])]
    counts = torch.stack([(target != IGNORE_INDEX).sum() for target in targets])
    divisor = at_least_one(counts[0] if num_items_in_batch is None else num_items_in_batch, weight.device)
    if isinstance(divisor, torch.Tensor):
        # A number divided by an integer tensor is always float32.
        divisor = divisor.to(torch.promote_types(weight.dtype, torch.float32))
    cap = None if layer.shape.soft_cap is None else (layer.shape, label_smoothing)
    loss, nll_sums = _ChunkedNLL.apply(weight, bias, cap, weights, training.gradient, divisor, targets, *rows)
    if label_smoothing and cap is None:
        term = _smoothing_term(rows[:1], targets[:1], weights[:1], weight, bias)
        if len(rows) > 1:
            weight, bias = training.scale_gradient(weight), None if bias is None else training.scale_gradient(bias)
            term = term + _smoothing_term(rows[1:], targets[1:], weights[1:], weight, bias)
        loss = loss + label_smoothing / divisor * term
    return loss, nll_sums / counts.clamp(min=1)


def at_least_one(count: int | torch.Tensor, device: torch.device) -> int | torch.Tensor:
    """
    Return `max(count, 1)`, a divisor that makes the loss of a batch without targets 0 instead of 0/0. An `int` stays
    an `int`; a tensor becomes a scalar tensor on `device`.
    """
    if isinstance(count, torch.Tensor):
        return count.to(device).clamp(min=1).reshape(())
    return max(count, 1)


@torch.no_grad()
def mean_nll(predictions: NgramPredictions, layer: LogitLayer) -> torch.Tensor:
    """
    Return the mean NLL of each depth over its own targets, of shape `(len(predictions.embeddings),)`, without label
    smoothing and without gradients.
    """
    return ngram_loss(predictions, layer)[1] if predictions.embeddings else layer.weight.new_empty(0)


@torch.no_grad()
def grid_nll(
    predictions: NgramPredictions, ensembles: Sequence[float | Sequence[float]], layer: LogitLayer
) -> torch.Tensor:
    r"""
    Return the summed next-token NLL of several ensembles. The paper's ensemble is linear in λ, and so are its logits
    before the soft cap: two products with the output embedding are enough for all values of λ. Weights take one each.

    Args:
        predictions ([`NgramPredictions`]): The predictions of all depths, with targets.
        ensembles (`Sequence[float | Sequence[float]]`): The ensembles: values of λ, or N weights.
        layer ([`LogitLayer`]): The logit layer.

    Returns:
        `torch.Tensor` of shape `(len(ensembles),)`.
    """
    targets = predictions.targets[0]
    is_target = targets != IGNORE_INDEX
    weight, bias = layer.weight, layer.scaled_bias
    dtype = torch.promote_types(predictions.main.dtype, torch.float32)
    sums = torch.zeros(len(ensembles), dtype=dtype, device=targets.device)
    lambdas = {i: value for i, value in enumerate(ensembles) if is_lambda(value)}
    weighted = [i for i in range(len(ensembles)) if i not in lambdas]
    embeddings = [predictions.main, predictions.ensemble(1.0), *(predictions.ensemble(ensembles[i]) for i in weighted)]
    # Each λ reads a chunk's logits again, so on a CPU a chunk has to fit in its cache.
    size = max(64, CACHED_ELEMENTS // weight.shape[0]) if targets.device.type == "cpu" else chunk_rows(weight)
    chunks = (rows[is_target].split(size) for rows in (targets, *embeddings))
    for target, *rows in zip(*chunks, strict=True):
        main_logits, past_logits, *logits = (F.linear(layer.scaled(row), weight, bias).to(dtype) for row in rows)
        for i, value in lambdas.items():
            mixed = torch.lerp(main_logits, past_logits, value)
            sums[i] += F.cross_entropy(layer.shape.cap(mixed), target, reduction="sum")
        for i, weighted_logits in zip(weighted, logits, strict=True):
            sums[i] += F.cross_entropy(layer.shape.cap(weighted_logits), target, reduction="sum")
    return sums


def chunk_rows(weight: torch.Tensor) -> int:
    """
    Return how many rows of logits to compute at once, given the output embedding: at most `LARGEST_CHUNK`, fewer for a
    large vocabulary, and at least 1.
    """
    elements = CHUNK_ELEMENTS if weight.device.type == "cpu" else CHUNK_ELEMENTS_ACCELERATOR
    return max(1, min(LARGEST_CHUNK, elements // weight.shape[0]))


class _ChunkedNLL(torch.autograd.Function):
    """
    Autograd function with two outputs: the loss, which is the weighted sum of all depths' NLL sums over the divisor,
    and the NLL sums themselves, of shape `(N,)` and not differentiable. With a soft cap, the loss includes label
    smoothing.

    `linear_cross_entropy` computes the gradients together with the loss. Going depth by depth and adding the weight
    gradients here keeps one `(vocab_size, d)` gradient for all depths instead of one for each.
    """

    @staticmethod
    @torch.compiler.disable
    def forward(ctx, weight, bias, cap, weights, head_gradient, divisor, targets, *rows):
        needs_weight, needs_bias, _, _, _, _, _, *needs_rows = ctx.needs_input_grad
        weight = weight.detach().requires_grad_(needs_weight)
        bias = None if bias is None else bias.detach().requires_grad_(needs_bias)
        # Gradients are stored for the mean, which cannot overflow, and scaled so that float16 does not underflow.
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
            share = 1.0 if len(nll_sums) == 1 else head_gradient
            weight_grad = _add_to(weight_grad, grads[1], share=share)
            bias_grad = _add_to(bias_grad, grads[2], share=share)
            # Free this depth's gradients before computing the next.
            del grads
            if head_gradient == 0.0:
                weight, bias = weight.detach(), None if bias is None else bias.detach()
        ctx.save_for_backward(weight_grad, bias_grad, *row_grads)
        nll_sums = torch.stack(nll_sums)
        ctx.mark_non_differentiable(nll_sums)
        return total / divisor, nll_sums

    @staticmethod
    def backward(ctx, grad_total, _):
        weight_grad, bias_grad, *row_grads = (
            None if grad is None else grad * (grad_total / ctx.scale).to(grad.dtype) for grad in ctx.saved_tensors
        )
        return weight_grad, bias_grad, None, None, None, None, None, *row_grads


def _nll_and_gradients(
    leaves: list[torch.Tensor | None], target: torch.LongTensor, factor: float | torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """
    Return the NLL sum of one depth, detached, and its gradients times `factor` for the three `leaves`: rows, output
    embedding, bias. A gradient is `None` for a leaf that is `None` or does not require one.
    """
    rows, weight, bias = leaves
    if not len(rows):
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return rows.new_zeros((), dtype=dtype), [torch.zeros_like(rows), None, None]
    options = LinearCrossEntropyOptions(batch_chunk_size=chunk_rows(weight), chunking_method=None)
    # A sum in half precision overflows or loses digits, so half-precision rows are summed in float32.
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
    Do the same as `_nll_and_gradients` for soft-capped logits. Return the NLL sum, the loss sum with label smoothing,
    and the gradients of the loss sum. Torch has no fused function for a soft cap, and label smoothing needs all capped
    logits.
    """
    rows, weight, bias = leaves
    size = chunk_rows(weight)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    nll_sum = loss_sum = torch.zeros((), dtype=dtype, device=weight.device)
    row_grads, weight_grad, bias_grad = [], None, None
    for row_chunk, target_chunk in zip(rows.detach().split(size), target.split(size), strict=True):
        row_chunk.requires_grad_(rows.requires_grad)
        with torch.enable_grad():
            logits = shape.cap(F.linear(row_chunk, weight, bias).to(dtype))
            nll = F.cross_entropy(logits, target_chunk, ignore_index=IGNORE_INDEX, reduction="sum")
            loss = nll
            if label_smoothing:
                is_target = target_chunk != IGNORE_INDEX
                target_logits = logits.gather(1, target_chunk.clamp(min=0)[:, None])[:, 0]
                loss = nll + label_smoothing * ((target_logits - logits.mean(1)) * is_target).sum()
        grads = _gradients(loss, [row_chunk, weight, bias], factor)
        nll_sum, loss_sum = nll_sum + nll.detach(), loss_sum + loss.detach()
        row_grads.append(grads[0])
        # Sum in float32: half precision would lose the digits of many small terms.
        weight_grad = _add_to(weight_grad, grads[1], dtype)
        bias_grad = _add_to(bias_grad, grads[2], dtype)
    row_grad = torch.cat(row_grads) if rows.requires_grad else None
    weight_grad, bias_grad = (grad if grad is None else grad.to(weight.dtype) for grad in (weight_grad, bias_grad))
    return nll_sum, loss_sum, [row_grad, weight_grad, bias_grad]


def _gradients(
    loss: torch.Tensor, leaves: list[torch.Tensor | None], factor: float | torch.Tensor
) -> list[torch.Tensor | None]:
    """Return the gradients of `factor * loss`, one per leaf; `None` for a leaf that is `None` or does not need one."""
    indices = [i for i, leaf in enumerate(leaves) if leaf is not None and leaf.requires_grad]
    grads: list[torch.Tensor | None] = [None] * len(leaves)
    if indices:
        computed = torch.autograd.grad(loss, [leaves[i] for i in indices], torch.ones_like(loss) * factor)
        for i, grad in zip(indices, computed, strict=True):
            grads[i] = grad
    return grads


def _add_to(
    total: torch.Tensor | None,
    term: torch.Tensor | None,
    dtype: torch.dtype | None = None,
    share: float = 1.0,
) -> torch.Tensor | None:
    """Return `total + share * term`, computed in place. A missing total is 0, a missing term changes nothing."""
    if term is None:
        return total
    if total is None:
        return term if dtype is None else term.to(dtype)
    return total.add_(term, alpha=share)


def _smoothing_term(rows, targets, weights, weight, bias) -> torch.Tensor:
    """
    Return what label smoothing adds to the weighted NLL sum, divided by ε: the target's logit minus the mean logit,
    summed over all depths' targets with their loss weights. That takes two dot products per row instead of all logits.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    row_weights = torch.cat(
        [(target != IGNORE_INDEX).to(dtype) * w for target, w in zip(targets, weights, strict=True)]
    )
    rows, targets = torch.cat(rows) * row_weights[:, None], torch.cat(targets).clamp(min=0)
    target_logits = (rows * F.embedding(targets, weight)).sum(dtype=dtype)
    mean_logits = (rows.sum(0, dtype=dtype) * weight.mean(0, dtype=dtype)).sum()
    if bias is not None:
        target_logits = target_logits + (row_weights * (bias[targets] - bias.mean())).sum(dtype=dtype)
    return target_logits - mean_logits


def _autocast(tensors: list[torch.Tensor | None], num_rows: int):
    """
    Split `tensors` into the first `num_rows` (a list), the output embedding and the bias. Under `torch.autocast`, cast
    them to its dtype; a bias of `None` stays `None`.
    """
    device_type = tensors[0].device.type
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        tensors = [tensor if tensor is None else tensor.to(dtype) for tensor in tensors]
    return tensors[:num_rows], tensors[num_rows], tensors[num_rows + 1]
