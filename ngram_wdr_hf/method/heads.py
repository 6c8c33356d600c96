"""The heads, and the predictions of all depths."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from .differences import conjugate_of
from .documents import IGNORE_INDEX


class NgramHead(nn.Module):
    """
    The paper's `MLP^n`: two linear layers of the model's width d with an activation between them, `2 d^2 + 2 d`
    parameters. It maps hidden states `(..., d)` to predictions of the same shape: word differences for WDR heads,
    embeddings for simple heads.
    """

    def __init__(self, width: int, activation: str):
        super().__init__()
        self.fc_in = nn.Linear(width, width)
        self.activation = ACT2FN[activation]
        self.fc_out = nn.Linear(width, width)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.fc_out(self.activation(self.fc_in(hidden_states)))


@dataclass(frozen=True)
class NgramPredictions:
    r"""
    The predicted embeddings of all depths and, with labels, their targets. Depth 0 is the model's own prediction,
    depth n is head n's. The loss, the ensemble, the grid over λ and the diagnostics all start from this object.

    Args:
        embeddings (`Sequence[torch.Tensor]`, N of shape `(..., d)`):
            The predicted embeddings per depth. In a causal model, depth n is `(batch_size, K_n, d)`: for each of the
            last `K_n` positions, head n's prediction of the next token, made n positions earlier. In a masked model,
            depth n is `(number of targets, d)`.
        targets (`Sequence[torch.LongTensor]`, *optional*):
            The target ids per depth, of the same shape without d; -100 for no target. `None` without labels.
        runs (`torch.LongTensor` of shape `(batch_size, K_0)`, *optional*):
            The run lengths of the positions, which the ensemble needs; `None` if it is not used.
    """

    embeddings: Sequence[torch.Tensor]
    targets: Sequence[torch.LongTensor] | None = None
    runs: torch.LongTensor | None = None

    @classmethod
    def from_past(
        cls,
        heads: Sequence[NgramHead],
        hidden_states: torch.Tensor,
        embeddings: torch.Tensor | None,
        runs: torch.LongTensor,
        next_tokens: torch.LongTensor | None = None,
    ) -> "NgramPredictions":
        r"""
        Apply the heads of a causal model, and align their predictions by the token that they predict. WDR heads'
        predictions become embeddings by their conjugate terms. Depth n has predictions for the last
        `K_n = min(K, P + K - n)` positions. It has no target where its prediction was made in another document or at
        one of the P earlier positions.

        Args:
            heads (`Sequence[NgramHead]`): The N - 1 heads.
            hidden_states (`torch.Tensor` of shape `(batch_size, P + K, d)`):
                The hidden states `h` of P earlier positions, then of the K positions to predict from.
            embeddings (`torch.Tensor` of shape `(batch_size, P + K, d)`, *optional*):
                The output embeddings of the tokens at all P + K positions; `None` for simple heads.
            runs (`torch.LongTensor` of shape `(batch_size, K)`): The run lengths of the K positions.
            next_tokens (`torch.LongTensor` of shape `(batch_size, K)`, *optional*):
                The token after each of the K positions; -100 for no target. With `None`, the result has no targets.
        """
        kept, length = runs.shape[1], hidden_states.shape[1]
        predicted, targets = [hidden_states[:, length - kept :]], None
        if next_tokens is not None:
            targets = [next_tokens]
            # Predictions made at the P earlier positions are for the ensemble; they have no targets in the loss.
            runs_here = torch.minimum(runs, torch.arange(1, kept + 1, device=runs.device))
        for n, head in enumerate(heads, start=1):
            end = max(length - n, 0)
            count = min(kept, end)
            prediction = head(hidden_states[:, end - count : end])
            if embeddings is not None:
                # The tokens x[t-n+1..t] are known at position t and turn head n's difference into an embedding.
                neighbors = [embeddings[:, length - i - count : length - i] for i in range(n)]
                prediction = prediction + conjugate_of(neighbors)
            predicted.append(prediction)
            if next_tokens is not None:
                begin = kept - count
                targets.append(next_tokens[:, begin:].masked_fill(runs_here[:, begin:] <= n, IGNORE_INDEX))
        return cls(predicted, targets, runs)

    @property
    def main(self) -> torch.Tensor:
        """The model's own predictions, depth 0: in a causal model, the hidden states `(batch_size, K, d)`."""
        return self.embeddings[0]

    def past_mean(self) -> torch.Tensor:
        """
        Return the mean of the heads' past predictions of each next token, `1/(N-1) sum_n ê_n[t-n]`, of shape
        `(batch_size, K, d)`. Where head n has no past prediction in the same document, the main prediction takes its
        place. Needs at least one head, and `runs`.
        """
        main, total = self.main, 0.0
        for n, prediction in enumerate(self.embeddings[1:], start=1):
            if prediction.shape[1] < main.shape[1]:
                prediction = F.pad(prediction, (0, 0, main.shape[1] - prediction.shape[1], 0))
            total = torch.where((self.runs > n)[..., None], prediction, main) + total
        return total / (len(self.embeddings) - 1)

    def ensemble(self, ensemble_lambda: float) -> torch.Tensor:
        """
        Return the ensemble's predictions `(1-λ) h + λ/(N-1) sum_n ê_n`, of shape `(batch_size, K, d)`. For λ = 0 or
        without heads, these are the main predictions.
        """
        if ensemble_lambda == 0 or len(self.embeddings) == 1:
            return self.main
        return torch.lerp(self.main, self.past_mean(), ensemble_lambda)

    def of_heads(self) -> "NgramPredictions":
        """Return a new object with the heads' predictions and targets only: no depth 0, no run lengths."""
        return NgramPredictions(self.embeddings[1:], self.targets[1:])
