"""What an inference engine runs of the heads: greedy drafts for rows of hidden states."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from ..method.heads import NgramHeads


class HeadDrafts(nn.Module):
    """
    The heads, and the part of the output embedding for their draft tokens. An engine may know only the hidden states:
    the next token, which the model has chosen already, is then the most likely one of the draft tokens.

    Args:
        fields (`dict`): The fields of the configuration that heads are made of.
        width (`int`): The width of the output embedding.
        num_tokens (`int`): The number of draft tokens.
        has_bias (`bool`): Whether the output embedding has a bias.
    """

    def __init__(self, fields: dict[str, Any], width: int, num_tokens: int, has_bias: bool = False):
        super().__init__()
        self.heads = NgramHeads.of(SimpleNamespace(**fields), width)
        self.shortlist = nn.Linear(width, num_tokens, bias=has_bias)
        # Integers, in whatever dtype an engine creates its modules.
        self.register_buffer("token_ids", torch.zeros(num_tokens, dtype=torch.long))

    def forward(self, hidden_states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the tokens at depths 1 to `depth`, `(batch_size, depth)`, for hidden states `(batch_size, d)`."""
        chosen, neighbors = [self.shortlist(hidden_states).argmax(-1)], []
        for head in self.heads.by_depth(depth):
            neighbors.insert(0, self.shortlist.weight[chosen[-1]])
            hidden_states = head.advance(hidden_states, neighbors[0])
            chosen.append(self.shortlist(head.predict(hidden_states, neighbors)).argmax(-1))
        return self.token_ids[torch.stack(chosen[1:], dim=1)]
