"""The added heads: small MLPs that predict words further ahead from the hidden state of the next-word prediction."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers.activations import ACT2FN


class NgramHead(nn.Module):
    """The paper's `MLP^n`: two linear layers of the model's width, `2 d^2 + 2 d` parameters."""

    def __init__(self, width: int, activation: str):
        super().__init__()
        self.fc_in = nn.Linear(width, width)
        self.activation = ACT2FN[activation]
        self.fc_out = nn.Linear(width, width)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.fc_out(self.activation(self.fc_in(hidden_states)))


def predict_from_past(
    heads: Sequence[NgramHead], hidden_states: torch.Tensor, embeddings: torch.Tensor | None, first: int = 0
) -> list[torch.Tensor]:
    r"""
    What each head n said, n steps before, about the word that comes after each of the times `first, ..., T-1`. There
    is nothing from before the first hidden state, so head n begins at time n at the earliest.

    Args:
        heads (`Sequence[NgramHead]`): The N - 1 heads.
        hidden_states (`torch.Tensor` of shape `(batch_size, T, d)`): The hidden states `h`.
        embeddings (`torch.Tensor` of shape `(batch_size, T, d)`, *optional*):
            The output embeddings of the tokens read at each time, for WDR heads; `None` for simple heads.
        first (`int`, *optional*, defaults to 0): The first time of interest.

    Returns:
        `list[torch.Tensor]` of shapes `(batch_size, max(T - max(first, n), 0), d)`: the predicted embeddings `ê_n`.
    """
    length = hidden_states.shape[1]
    predictions = []
    difference = conjugate = None
    for n, head in enumerate(heads, start=1):
        begin = min(max(first, n), length)
        prediction = head(hidden_states[:, max(begin - n, 0) : max(length - n, 0)])
        if embeddings is not None:
            # Time t knows x[t-n+1..t]; they turn the n-level difference that head n predicts into an embedding. The
            # conjugate term of one level more is the last one's plus the next difference: both end at time T-1.
            difference = embeddings if n == 1 else difference[:, 1:] - difference[:, :-1]
            conjugate = difference if n == 1 else conjugate[:, 1:] + difference
            prediction = prediction + conjugate[:, conjugate.shape[1] - prediction.shape[1] :]
        predictions.append(prediction)
    return predictions


class RunningConjugate:
    """The conjugate term of the words since some time, as they come: of n words, that of level n."""

    def __init__(self):
        self.differences = []

    def add(self, embedding: torch.Tensor) -> torch.Tensor:
        """The term with one word more, whose output embedding is `embedding`."""
        differences = [embedding]
        for difference in self.differences:
            differences.append(differences[-1] - difference)
        self.differences = differences
        return sum(differences)
