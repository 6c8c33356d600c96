"""The added heads, and what they and the model itself predict about each token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from .differences import conjugate_of
from .documents import IGNORE_INDEX


class NgramHead(nn.Module):
    """The paper's `MLP^n`: two linear layers of the model's width, `2 d^2 + 2 d` parameters."""

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
    The predicted embeddings of tokens and, with labels, the tokens that are to be predicted. Depth 0 is the model
    itself, depth n is head n. The loss, the ensemble, the grid over λ and the diagnostics are all made from this.

    Args:
        embeddings (`Sequence[torch.Tensor]`, N of shape `(..., d)`):
            For each depth, the predicted embeddings. In a causal model, depth n is `(batch_size, K_n, d)`: what head n
            predicted, n positions before, about the token after each of the last `K_n` positions.
        targets (`Sequence[torch.LongTensor]`, *optional*):
            For each depth, the token ids, of the same leading shape; -100 where there is no target.
        runs (`torch.LongTensor` of shape `(batch_size, K_0)`, *optional*):
            `run_lengths` of the positions, for the ensemble.
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
        Applies the heads of a causal model.

        Args:
            heads (`Sequence[NgramHead]`): The N - 1 heads.
            hidden_states (`torch.Tensor` of shape `(batch_size, P + K, d)`):
                The hidden states `h` of K positions, after those of P earlier ones.
            embeddings (`torch.Tensor` of shape `(batch_size, P + K, d)`, *optional*):
                The output embeddings of the tokens at these positions, for WDR heads; `None` for simple heads.
            runs (`torch.LongTensor` of shape `(batch_size, K)`): `run_lengths` of the K positions.
            next_tokens (`torch.LongTensor` of shape `(batch_size, K)`, *optional*):
                The token after each of the K positions; -100 where it is no target.
        """
        kept, length = runs.shape[1], hidden_states.shape[1]
        predicted, targets = [hidden_states[:, length - kept :]], None
        if next_tokens is not None:
            targets = [next_tokens]
            # What was predicted before these positions is for the ensemble; the losses are those of these positions.
            runs_here = torch.minimum(runs, torch.arange(1, kept + 1, device=runs.device))
        for n, head in enumerate(heads, start=1):
            end = max(length - n, 0)
            count = min(kept, end)
            prediction = head(hidden_states[:, end - count : end])
            if embeddings is not None:
                # Position t knows x[t-n+1..t]: they turn the difference that head n predicts into an embedding.
                neighbors = [embeddings[:, length - i - count : length - i] for i in range(n)]
                prediction = prediction + conjugate_of(neighbors)
            predicted.append(prediction)
            if next_tokens is not None:
                begin = kept - count
                targets.append(next_tokens[:, begin:].masked_fill(runs_here[:, begin:] <= n, IGNORE_INDEX))
        return cls(predicted, targets, runs)

    @property
    def main(self) -> torch.Tensor:
        """The model's own predictions, depth 0."""
        return self.embeddings[0]

    def past_mean(self) -> torch.Tensor:
        """
        `1/(N-1) sum_n ê_n[t-n]`: what the ensemble mixes with the main prediction, `(batch_size, K, d)`. Where head n
        has no past prediction in the same document, the main prediction stands in for it.
        """
        main, total = self.main, 0.0
        for n, prediction in enumerate(self.embeddings[1:], start=1):
            if prediction.shape[1] < main.shape[1]:
                prediction = F.pad(prediction, (0, 0, main.shape[1] - prediction.shape[1], 0))
            total = torch.where((self.runs > n)[..., None], prediction, main) + total
        return total / (len(self.embeddings) - 1)

    def ensemble(self, ensemble_lambda: float) -> torch.Tensor:
        """`ê_ens = (1-λ) h + λ/(N-1) sum_n ê_n`: `(batch_size, K, d)`."""
        if ensemble_lambda == 0 or len(self.embeddings) == 1:
            return self.main
        return torch.lerp(self.main, self.past_mean(), ensemble_lambda)

    def of_heads(self) -> "NgramPredictions":
        """Those of the heads alone, with their targets."""
        return NgramPredictions(self.embeddings[1:], self.targets[1:])
