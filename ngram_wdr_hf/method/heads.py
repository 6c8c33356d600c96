"""The heads, and the predictions of all depths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from .differences import conjugate_of
from .documents import IGNORE_INDEX
from .ensemble import is_plain, weights_of
from .head_training import HeadTraining


class NgramHead(nn.Module):
    """
    The paper's `MLP^n`: two linear layers of the model's width d with an activation between them, `2 d^2 + 2 d`
    parameters, or with `expansion` times that width between them. It maps hidden states `(..., d)` to word differences
    or, with the target `"simple"`, to embeddings. A head that also reads the n tokens before the predicted one has
    more inputs, and adds its output to the hidden state.

    A shared head is that of all depths: it reads one token, and depth n applies it to its own output at depth n - 1.
    """

    def __init__(
        self,
        width: int,
        activation: str,
        target: str = "wdr",
        num_tokens_read: int = 0,
        expansion: int = 1,
        is_shared: bool = False,
    ):
        super().__init__()
        self.target, self.is_shared = target, is_shared
        self.num_tokens_read = num_tokens_read
        self.fc_in = nn.Linear(width * (1 + num_tokens_read), width * expansion)
        self.activation = ACT2FN[activation]
        self.fc_out = nn.Linear(width * expansion, width)

    def forward(self, hidden_states: torch.Tensor, neighbors: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        """Return the head's output before the conjugate term is added; arguments as in `predict`."""
        if not self.num_tokens_read:
            return self.fc_out(self.activation(self.fc_in(hidden_states)))
        # Output embeddings may be much smaller or larger than hidden states.
        scale = _root_mean_square(hidden_states.detach())
        tokens = [F.rms_norm(embedding, embedding.shape[-1:]) * scale for embedding in reversed(neighbors)]
        inputs = torch.cat([hidden_states, *tokens], dim=-1)
        return hidden_states + self.fc_out(self.activation(self.fc_in(inputs)))

    def predict(self, hidden_states: torch.Tensor, neighbors: Sequence[torch.Tensor]) -> torch.Tensor:
        """
        Return the predicted embedding `ê`, `(..., d)`, from hidden states of that shape, those of `advance` for a
        shared head. The `neighbors`, n tensors of it, are the output embeddings of the n tokens next to the predicted
        one, nearest first.
        """
        # Accelerate may have placed a head on another device.
        prediction = hidden_states if self.is_shared else self(hidden_states, neighbors).to(hidden_states.device)
        return prediction + conjugate_of(neighbors) if self.target == "wdr" else prediction

    def advance(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """
        Return the states that depth n predicts from, `(..., d)`: those of depth n - 1, unless the head is shared. Then
        it reads them, and the output embeddings of the last tokens, of the same shape.
        """
        return self(states, [tokens]).to(states.device) if self.is_shared else states


class NgramHeads(nn.Sequential):
    """
    The N - 1 heads: `heads[n - 1]` is head n; one if it is shared. Each is called by itself; this is no
    `nn.ModuleList` because PEFT does not train one.
    """

    @classmethod
    def of(cls, config: Any, width: int) -> "NgramHeads":
        """Return new heads for the N-gram fields of `config`, as wide as the output embedding."""
        numbers, is_shared = range(1, config.ngram_size), config.ngram_head_reads == "previous+token"
        reads_tokens, options = (
            config.ngram_head_reads != "hidden",
            (config.ngram_head_activation, config.ngram_target),
        )
        heads = (
            NgramHead(width, *options, n * reads_tokens, config.ngram_head_expansion, is_shared)
            for n in (numbers[:1] if is_shared else numbers)
        )
        return cls(*heads)

    def by_depth(self, depth: int) -> list[NgramHead]:
        """Return the heads of the first `depth` depths, or of all that there are; a shared head is that of any."""
        heads = list(self)
        return heads * depth if heads and heads[0].is_shared else heads[:depth]

    @property
    def active(self) -> "NgramHeads":
        """This module. PEFT's wrapper around a trained module hands on its attributes, and so this leads through."""
        return self


def _root_mean_square(states: torch.Tensor) -> torch.Tensor:
    """Return the root of the mean square of each vector, of shape `(..., 1)`. Squares overflow in float16."""
    precise = states.float() if states.dtype == torch.float16 else states
    return precise.square().mean(-1, keepdim=True).sqrt().to(states.dtype)


@dataclass(frozen=True)
class NgramPredictions:
    """
    The predicted embeddings of all depths and, with labels, their targets. Depth 0 is the model's own prediction,
    depth n is head n's. The loss, the ensemble, the grid over λ and the diagnostics all start from this object.
    """

    # Per depth. In a causal model, `(batch_size, K_n, d)`: for each of the last `K_n` positions, head n's prediction
    # of the next token, made n positions earlier. In a masked model, `(number of targets, d)`.
    embeddings: Sequence[torch.Tensor]
    # The target ids per depth, of the same shape without d; -100 for no target. `None` without labels.
    targets: Sequence[torch.Tensor] | Any = None
    # The run lengths, `(batch_size, K_0)`, which the ensemble needs.
    runs: torch.Tensor | None = None
    # How the heads are trained, for the loss; `None` for the paper's way.
    training: HeadTraining | None = None

    @classmethod
    def from_past(
        cls,
        heads: Sequence[NgramHead],
        hidden_states: torch.Tensor,
        embeddings: torch.Tensor | None,
        runs: torch.Tensor,
        next_tokens: torch.Tensor | None = None,
        training: HeadTraining | None = None,
    ) -> "NgramPredictions":
        r"""
        Apply the heads of a causal model, and align their predictions by the token that they predict. Depth n has
        predictions for the last `K_n = min(K, P + K - n)` positions. It has no target where its prediction was made in
        another document or at one of the P earlier positions. With a sample, head n has predictions and targets at the
        chosen positions only: `(num_chosen, d)` and `(num_chosen,)`.

        Args:
            heads (`Sequence[NgramHead]`): The N - 1 heads.
            hidden_states (`torch.Tensor` of shape `(batch_size, P + K, d)`):
                The hidden states `h` of P earlier positions, then of the K positions to predict from.
            embeddings (`torch.Tensor` of the same shape, *optional*): The output embeddings, if heads need them.
            runs (`torch.LongTensor` of shape `(batch_size, K)`): The run lengths of the K positions.
            next_tokens (`torch.LongTensor` of shape `(batch_size, K)`, *optional*): The targets; -100 for none.
            training ([`HeadTraining`], *optional*): How the heads are trained.
        """
        kept, length = runs.shape[1], hidden_states.shape[1]
        predicted, targets = [hidden_states[:, length - kept :]], None
        if next_tokens is not None:
            targets = [next_tokens]
            # Predictions made at the P earlier positions are for the ensemble; they have no targets in the loss.
            runs_here = torch.minimum(runs, torch.arange(1, kept + 1, device=runs.device))
        states = hidden_states if training is None else training.scale_gradient(hidden_states)
        for n, head in enumerate(heads, start=1):
            end = max(length - n, 0)
            count = min(kept, end)
            if embeddings is not None:
                states = head.advance(states[:, :end], embeddings[:, n:])
            head_inputs = states[:, end - count : end]
            # The tokens x[t-n+1..t] are known at position t.
            neighbors = []
            if embeddings is not None:
                neighbors = [embeddings[:, length - i - count : length - i] for i in range(n)]
            if next_tokens is not None:
                begin = kept - count
                target = next_tokens[:, begin:].masked_fill(runs_here[:, begin:] <= n, IGNORE_INDEX)
                if training is not None:
                    target = training.restrict(target)
                if training is not None and training.samples:
                    is_chosen = training.choose(target, n)
                    head_inputs, target = head_inputs[is_chosen], target[is_chosen]
                    neighbors = [embedding[is_chosen] for embedding in neighbors]
                targets.append(target)
            predicted.append(head.predict(head_inputs, neighbors))
        return cls(predicted, targets, runs, training)

    @property
    def main(self) -> torch.Tensor:
        """The model's own predictions, depth 0: in a causal model, the hidden states `(batch_size, K, d)`."""
        return self.embeddings[0]

    def past(self, n: int) -> torch.Tensor:
        """
        Return head n's past predictions of each next token, `(batch_size, K, d)`. Where it has none in the same
        document, the main prediction takes its place.
        """
        main, prediction = self.main, self.embeddings[n]
        if prediction.shape[1] < main.shape[1]:
            prediction = F.pad(prediction, (0, 0, main.shape[1] - prediction.shape[1], 0))
        return torch.where((self.runs > n)[..., None], prediction, main)

    def ensemble(self, ensemble: float | Sequence[float]) -> torch.Tensor:
        """
        Return the ensemble `w_0 h + sum_n w_n ê_n`, of shape `(batch_size, K, d)`, for the paper's λ or for N weights.
        Where head n has no past prediction, its weight goes to the main prediction.
        """
        weights = weights_of(ensemble, len(self.embeddings))
        if len(self.embeddings) == 1 or is_plain(weights):
            return self.main
        total = self.main * weights[0]
        for n in range(1, len(self.embeddings)):
            total = torch.add(total, self.past(n), alpha=weights[n])
        return total

    def counts(self) -> torch.Tensor:
        """Return the number of targets in the loss of each depth, integers of shape `(N,)`."""
        counts = torch.stack([(target != IGNORE_INDEX).sum() for target in self.targets])
        if self.training is not None and not self.training.trains_model:
            counts[0] = 0
        return counts

    def of_heads(self) -> "NgramPredictions":
        """Return a new object with the heads' predictions and targets only: no depth 0, no run lengths."""
        return NgramPredictions(self.embeddings[1:], self.targets[1:])
