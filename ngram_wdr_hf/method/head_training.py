"""How the heads are trained beside the model: their gradient, their loss weights, and their sample of positions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .documents import IGNORE_INDEX

# Constants of a 64-bit linear congruential generator (Knuth's MMIX), and an odd multiplier to tell positions apart.
MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407
POSITION_MULTIPLIER = 2862933555777941757


def head_weights(ngram_size: int, loss_weight: float | None = None, decay: float = 1.0) -> list[float]:
    """
    Return the loss weight of each depth: one half for depth 0 and one half shared by the heads; with `loss_weight`, 1
    for depth 0 and `loss_weight` shared by the heads. Head n's share is proportional to `decay^n`.
    """
    if ngram_size == 1:
        return [1.0]
    main, heads = (0.5, 0.5) if loss_weight is None else (1.0, loss_weight)
    shares = [decay**n for n in range(ngram_size - 1)]
    return [main, *(heads * share / sum(shares) for share in shares)]


@dataclass(frozen=True)
class HeadTraining:
    """How the heads are trained in one step."""

    # The loss weight of each depth.
    weights: Sequence[float]
    # The share γ of the heads' gradient that reaches the hidden states and the output embedding.
    gradient: float = 1.0
    # The share ρ of its targets that a head is trained on, and the seed of the sample.
    sample_rate: float = 1.0
    step: int | torch.Tensor = 0
    # The vocabulary of the heads' loss, `(num_tokens,)`; other targets do not count. All tokens by default.
    tokens: torch.Tensor | None = None
    # Whether the model is trained, too: depth 0 has a loss.
    trains_model: bool = True

    @property
    def samples(self) -> bool:
        """Whether heads are trained on chosen positions only. A head with a loss weight of 0 needs none."""
        return self.sample_rate < 1.0 or not all(self.weights)

    def scale_gradient(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the same values whose gradient is multiplied by γ."""
        if self.gradient == 1.0:
            return tensor
        return tensor.detach() if self.gradient == 0.0 else torch.lerp(tensor.detach(), tensor, self.gradient)

    def restrict(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the targets of a head, with -100 in place of those that are not in `tokens`."""
        if self.tokens is None:
            return targets
        return targets.masked_fill(~torch.isin(targets, self.tokens), IGNORE_INDEX)

    def choose(self, targets: torch.Tensor, n: int) -> torch.BoolTensor:
        """
        Return which of its `targets`, `(batch_size, T)`, head n is trained on. The choice depends on the step, the
        head, the position and the targets of the batch row only (so equal rows of a batch get the same): it is the
        same for every batch size and number of processes, and leaves the random number generators alone.
        """
        is_target = targets != IGNORE_INDEX
        rate = self.sample_rate if self.weights[n] else 0.0
        if rate == 1.0:
            return is_target
        positions = torch.arange(targets.shape[1], device=targets.device) * POSITION_MULTIPLIER
        row_keys = (_scramble(targets + positions) * is_target).sum(dim=1, keepdim=True)
        keys = _scramble(_scramble(row_keys + positions) + self.step * MULTIPLIER % 2**62 + n)
        # The 53 highest bits as a number from 0 to 1.
        return is_target & (((keys >> 11) & (2**53 - 1)).double() / 2**53 < rate)


def _scramble(keys: torch.Tensor) -> torch.Tensor:
    """Return pseudo-random 64-bit integers, one for each key."""
    for _ in range(2):
        keys = keys * MULTIPLIER + INCREMENT
        keys = keys ^ ((keys >> 32) & (2**32 - 1))
    return keys
