"""
Drafts by our heads in vLLM. vLLM finds `register` by the entry point `vllm.general_plugins`, and loads the class for a
folder that `ngram-wdr export` wrote, as a draft model of the method "medusa".
"""

from collections.abc import Iterable

import torch
from torch import nn

from .head_drafts import HeadDrafts

ARCHITECTURE = "NgramHeadDrafts"


def register() -> None:
    """Tell vLLM about the class. Every process of it calls this at its start."""
    from vllm import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, f"{__name__}:{ARCHITECTURE}")


class Chosen:
    """Tokens in place of the logits that vLLM would search for them: over the whole vocabulary, that takes longer."""

    def __init__(self, tokens: torch.Tensor):
        self.tokens = tokens

    def argmax(self, dim: int) -> torch.Tensor:
        return self.tokens


class NgramHeadDrafts(nn.Module):
    """The draft model. In each step, it gets the hidden states of the last accepted tokens, `(batch_size, d)`."""

    def __init__(self, *, vllm_config, prefix: str = ""):
        super().__init__()
        speculation = vllm_config.speculative_config
        config, target = speculation.draft_model_config.hf_config, vllm_config.model_config.hf_config
        expected, found = (config.ngram_vocab_size, config.hidden_size), (target.vocab_size, target.hidden_size)
        if expected != found:
            raise ValueError(
                f"The heads are for a model with a vocabulary of {expected[0]} and a width of {expected[1]}, and the "
                f"served one has {found[0]} and {found[1]}: serve the model that `ngram-wdr export` named."
            )
        self.depth = speculation.num_speculative_tokens
        self.drafts = HeadDrafts(config.ngram_fields, config.hidden_size, config.ngram_draft_size, config.ngram_bias)
        most = len(self.drafts.heads.by_depth(self.depth))
        if most < self.depth:
            raise ValueError(f"`num_speculative_tokens` is {self.depth}, and there are {most} heads: reduce it.")

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> list[Chosen]:
        return [Chosen(tokens) for tokens in self.drafts(hidden_states, self.depth).unbind(1)]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        state = self.state_dict()
        loaded = {f"drafts.{name}": tensor for name, tensor in weights}
        for name in state:
            state[name].copy_(loaded[name])
        return set(loaded)
