"""The N-gram training loss, computed in chunks so that only a few hundred rows of logits exist at a time."""

from collections.abc import Sequence
from math import ceil

import torch
import torch.nn.functional as F

from .documents import IGNORE_INDEX
from .ensemble import is_lambda
from .head_training import HeadTraining, head_weights
from .heads import NgramPredictions
from .logits import LogitLayer

# Logits per chunk: enough for efficient matrix products, few next to a model's activations. In half precision, as is
# usual on accelerators, larger chunks also sum more exactly.
CHUNK_ELEMENTS = 2**25
CHUNK_ELEMENTS_ACCELERATOR = 2**26
LARGEST_CHUNK = 1024
CACHED_ELEMENTS = 2**20
# The rows of a chunk's logits begin at multiples of this many elements.
ALIGNMENT = 64
# Columns of logits per product on a CPU: the embeddings of these tokens stay in the processor's cache.
CACHED_TOKENS = 512
# Gradients of a mean over many rows underflow in float16: they are scaled by at most this number.
FLOAT16_SCALE = 1024.0


def ngram_loss(
    predictions: NgramPredictions,
    layer: LogitLayer,
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""
    Return the weighted sum of all depths' losses, `1/2 L_0 + 1/(2(N-1)) sum_n L_n` by default, or `L_0` for N = 1.
    `L_n` is the cross entropy summed over depth n's targets, divided by a count that is the same for all depths: that
    of depth 0's targets, or Trainer's `num_items_in_batch`. Return also the mean NLL of each depth over its own
    targets, `(N,)`, without label smoothing and detached. Without targets, both are 0.
    """
    rows = [layer.scaled(prediction.reshape(-1, prediction.shape[-1])) for prediction in predictions.embeddings]
    targets = [target.reshape(-1) for target in predictions.targets]
    *rows, weight, bias = _autocast([*rows, layer.weight, layer.scaled_bias])
    if not torch.is_grad_enabled():
        # `_ChunkedLoss` computes gradients for inputs with `requires_grad`, even when gradients are disabled.
        rows, weight, bias = [row.detach() for row in rows], weight.detach(), None if bias is None else bias.detach()

    training = predictions.training or HeadTraining(head_weights(len(rows)))
    # A head's sample stands for all its targets.
    weights = [training.weights[0], *(w / training.sample_rate for w in training.weights[1:])]
    is_target = [target != IGNORE_INDEX for target in targets]
    counts = torch.stack([mask.sum() for mask in is_target])
    divisor = at_least_one(counts[0] if num_items_in_batch is None else num_items_in_batch, weight.device)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    factors = [mask.to(dtype) * w / divisor for mask, w in zip(is_target, weights, strict=True)]
    # The heads' rows share their products with the output embedding. Depth 0 has its own, so that its gradients do not
    # depend on the heads by as much as a rounding error.
    groups = [slice(0, 1), slice(1, None)][: len(rows)]
    rows, targets, factors = ([torch.cat(part[group]) for group in groups] for part in (rows, targets, factors))
    shape = (layer.shape.soft_cap, label_smoothing)
    if training.tokens is None and training.trains_model:
        loss, nll = _ChunkedLoss.apply(weight, bias, shape, training.gradient, targets, factors, *rows)
    else:
        loss, nll = _head_loss(weight, bias, shape, training, targets[1], factors[1], rows[1])
        if training.trains_model:
            main_loss, main_nll = _ChunkedLoss.apply(weight, bias, shape, 1.0, targets[:1], factors[:1], rows[0])
            loss, nll = main_loss + loss, torch.cat([main_nll, nll])
        else:
            nll = torch.cat([nll.new_zeros(len(rows[0])), nll])
    nll_sums = torch.stack([part.sum() for part in nll.split([len(mask) for mask in is_target])])
    return loss, nll_sums / counts.clamp(min=1)


def _head_loss(weight, bias, shape, training, target, factor, rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the heads' part of `_ChunkedLoss`, with logits of `training.tokens` only."""
    if training.tokens is not None:
        index = target.new_full((len(weight),), IGNORE_INDEX)
        index[training.tokens] = torch.arange(len(training.tokens), device=index.device)
        target = torch.where(target == IGNORE_INDEX, IGNORE_INDEX, index[target.clamp(min=0)])
        weight, bias = weight[training.tokens], None if bias is None else bias[training.tokens]
    # Here, the heads' rows are the only group, so their share of the gradient is taken outside.
    weight, bias = training.scale_gradient(weight), None if bias is None else training.scale_gradient(bias)
    return _ChunkedLoss.apply(weight, bias, shape, 1.0, [target], [factor], rows)


def at_least_one(count: int | torch.Tensor, device: torch.device) -> int | torch.Tensor:
    """Return `max(count, 1)`: divided by it, the loss of a batch without targets is 0 instead of 0/0."""
    return count.to(device).clamp(min=1).reshape(()) if isinstance(count, torch.Tensor) else max(count, 1)


@torch.no_grad()
def mean_nll(predictions: NgramPredictions, layer: LogitLayer) -> torch.Tensor:
    """Return the mean NLL of each depth over its own targets, without label smoothing and without gradients."""
    return ngram_loss(predictions, layer)[1] if predictions.embeddings else layer.weight.new_empty(0)


@torch.no_grad()
def grid_nll(
    predictions: NgramPredictions, ensembles: Sequence[float | Sequence[float]], layer: LogitLayer
) -> torch.Tensor:
    """
    Return the summed next-token NLL of several ensembles, each a λ or N weights, `(len(ensembles),)`. Logits before
    the soft cap are linear in λ: two products with the output embedding are enough for all values of it.
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
    """Return how many rows of logits to compute at once with an output embedding."""
    elements = CHUNK_ELEMENTS if weight.device.type == "cpu" else CHUNK_ELEMENTS_ACCELERATOR
    return max(1, min(LARGEST_CHUNK, elements // weight.shape[0]))


def product_dtype(weight: torch.Tensor) -> torch.dtype:
    """Return the dtype to multiply with the output embedding in: float32 if a CPU would emulate half precision."""
    has_bfloat16 = weight.dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("avx512_bf16", False)
    if weight.device.type != "cpu" or has_bfloat16:
        return weight.dtype
    return torch.promote_types(weight.dtype, torch.float32)


class _ChunkedLoss(torch.autograd.Function):
    """
    Autograd function with two outputs: the loss, summed over all rows with their factors; and the NLL of each row, 0
    for a row without target and not differentiable. The rows are in one or two groups: those of depth 0, and those of
    all heads, which add only the share γ of their gradients to the output embedding.

    The gradients are computed together with the loss, while the logits of a chunk are there.
    """

    @staticmethod
    @torch.compiler.disable
    def forward(ctx, weight, bias, shape, head_gradient, targets, factors, *groups):
        needs_weight, needs_bias, _, _, _, _, *needs_rows = ctx.needs_input_grad
        sum_dtype = torch.promote_types(weight.dtype, torch.float32)
        ctx.scale = _gradient_scale(factors) if weight.dtype == torch.float16 else 1.0
        # Half precision would lose the digits of many small terms.
        weight_grad = torch.empty_like(weight, dtype=sum_dtype) if needs_weight else None
        bias_grad = torch.zeros_like(bias, dtype=sum_dtype) if needs_bias else None
        row_grads = [torch.empty_like(rows) if needs else None for rows, needs in zip(groups, needs_rows, strict=True)]
        size = min(chunk_rows(weight), max(1, *(len(rows) for rows in groups)))
        # Matrix products are faster if all rows of their result are aligned.
        buffer = weight.new_empty((size, ceil(len(weight) / ALIGNMENT) * ALIGNMENT), dtype=sum_dtype)
        product_weight = weight.to(product_dtype(weight))

        loss, nlls = torch.zeros((), dtype=sum_dtype, device=weight.device), []
        for i, tensors in enumerate(zip(groups, targets, factors, row_grads, strict=True)):
            needs_shared = (needs_weight or needs_bias) and (i == 0 or head_gradient > 0.0)
            # Chunks of one size, as far as possible.
            count = max(1, ceil(len(groups[i]) / size))
            chunks = [[None] * count if tensor is None else tensor.tensor_split(count) for tensor in tensors]
            for rows, target, factor, row_grad in zip(*chunks, strict=True):  # (R, d), (R,), (R,), (R, d)
                aligned = buffer[: len(rows)]  # (R, vocab_size + padding)
                logits = aligned[:, : len(weight)]  # (R, vocab_size)
                _multiply_by_parts(rows.to(product_weight.dtype), product_weight, logits)
                if bias is not None:
                    logits += bias
                nll, smoothed_nll = _cross_entropy(aligned, logits, target, *shape)
                nlls.append(nll)
                loss += (factor * smoothed_nll).sum()
                # `logits` are their gradients now, without the rows' factors.
                factor = (factor * ctx.scale)[:, None]
                logit_grad = logits.to(product_weight.dtype)
                if row_grad is not None:
                    _multiply(logit_grad, product_weight, row_grad)
                    row_grad *= factor
                if not needs_shared:
                    continue
                factor = factor if i == 0 else factor * head_gradient
                if needs_weight:
                    # The first group always takes part, so its first chunk initializes the sum.
                    scaled_rows = (rows * factor).to(logit_grad.dtype)
                    _multiply(logit_grad.T, scaled_rows, weight_grad, beta=int(len(nlls) > 1))
                if needs_bias:
                    bias_grad += logits.mul_(factor).sum(0)
        # In float16, a sum over many rows may overflow as long as it is scaled. Autograd casts it in the end.
        dtype = sum_dtype if weight.dtype == torch.float16 else weight.dtype
        shared_grads = [None if grad is None else grad.to(dtype) for grad in (weight_grad, bias_grad)]
        ctx.save_for_backward(*shared_grads, *row_grads)
        nll = torch.cat(nlls)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx, grad_loss, _):
        # The gradients were computed with the loss, so autograd would take them for constants.
        if torch.is_grad_enabled():
            raise RuntimeError("The N-gram training loss has no second derivatives. Remove `create_graph=True`.")
        factor, grads = grad_loss / ctx.scale, ctx.saved_tensors
        # Copying the gradient of the output embedding takes time. On an accelerator, so does reading the factor.
        if factor.device.type != "cpu" or factor != 1.0:
            grads = (None if grad is None else grad * factor.to(grad.dtype) for grad in grads)
        weight_grad, bias_grad, *row_grads = grads
        return weight_grad, bias_grad, None, None, None, None, *row_grads


def _gradient_scale(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the scale for gradients in float16: so that no row's factor exceeds 1, and at most `FLOAT16_SCALE`."""
    lowest = factors[0].new_full((1,), 1.0 / FLOAT16_SCALE)
    return 1.0 / torch.cat([lowest, *factors]).amax()


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, beta: int = 0) -> None:
    """Set `out` to `beta * out + left @ right`. It may have a higher precision than the factors."""
    if out.dtype == left.dtype:
        torch.addmm(out, left, right, beta=beta, out=out)
    elif beta:
        out += left @ right
    else:
        out.copy_(left @ right)


def _multiply_by_parts(rows: torch.Tensor, weight: torch.Tensor, logits: torch.Tensor) -> None:
    """Set `logits` to `rows @ weight.T`, on a CPU `CACHED_TOKENS` columns at a time."""
    size = CACHED_TOKENS if weight.device.type == "cpu" else len(weight)
    for part, columns in zip(weight.split(size), logits.split(size, dim=1), strict=True):
        _multiply(rows, part.T, columns)


def _cross_entropy(
    aligned: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, soft_cap: float | None, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Return the NLL of each row, 0 for a row without target, and the same with label smoothing, `(R,)` each. Leave their
    gradients in place of the `logits`, `(R, vocab_size)` and not yet capped, the first columns of `aligned`.
    """
    if soft_cap is not None:
        logits.div_(soft_cap).tanh_()
        slope = 1.0 - logits.square()  # (R, vocab_size)
        logits *= soft_cap
    is_target = target != IGNORE_INDEX
    # Any logit stands for a missing target. `gather` refuses a target outside the vocabulary.
    index = target.masked_fill(~is_target, 0)[:, None]
    target_logits, highest = logits.gather(1, index)[:, 0], logits.amax(1)  # (R,)
    mean_logits = logits.mean(1) if label_smoothing else 0.0
    aligned[:, logits.shape[1] :] = -torch.inf
    torch.softmax(aligned, 1, out=aligned)
    # The highest probability is 1 / sum(exp(logits - highest)), so its logarithm gives the normalizer of the row.
    nll = torch.where(is_target, highest - logits.amax(1).log() - target_logits, 0.0)
    smoothed_nll = nll
    if label_smoothing:
        smoothed_nll = nll + label_smoothing * torch.where(is_target, target_logits - mean_logits, 0.0)
        logits -= label_smoothing / logits.shape[1]
    logits.scatter_add_(1, index, torch.full_like(index, label_smoothing - 1.0, dtype=logits.dtype))
    if soft_cap is not None:
        logits *= slope
    return nll, smoothed_nll


def _autocast(tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return the tensors, cast if `torch.autocast` is enabled."""
    device_type = tensors[0].device.type
    if not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    return [tensor if tensor is None else tensor.to(dtype) for tensor in tensors]
