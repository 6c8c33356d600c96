"""The added heads: small MLPs that predict words further ahead from the hidden state of the next-word prediction."""

import torch
from torch import nn
from transformers.activations import ACT2FN

from .arithmetic_wdr_ngram import conjugate_of_known


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
    head: NgramHead, n: int, hidden_states: torch.Tensor, embeddings: torch.Tensor | None, first: int
) -> torch.Tensor:
    r"""
    What head n said, n steps before, about the word that comes after each of the times `first, ..., T-1`.

    Args:
        head (`NgramHead`): Head n.
        n (`int`): How many steps before the head spoke.
        hidden_states (`torch.Tensor` of shape `(batch_size, T, d)`): The hidden states `h`.
        embeddings (`torch.Tensor` of shape `(batch_size, T, d)`, *optional*):
            The output embeddings of the tokens read at each time, for WDR heads; `None` for simple heads.
        first (`int`): The first time of interest, at least n.

    Returns:
        `torch.Tensor` of shape `(batch_size, max(T - first, 0), d)`: the predicted embedding `ê`.
    """
    count = max(hidden_states.shape[1] - first, 0)
    prediction = head(hidden_states.narrow(1, min(first - n, hidden_states.shape[1]), count))
    if embeddings is not None and count > 0:
        # Time t knows x[t-n+1..t]; they turn the predicted n-level difference into a predicted embedding.
        prediction = prediction + conjugate_of_known(embeddings[:, first - n + 1 :], n)
    return prediction
