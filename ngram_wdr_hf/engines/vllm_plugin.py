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

    for name in (ARCHITECTURE, f"Eagle{ARCHITECTURE}"):
        ModelRegistry.register_model(name, f"{__name__}:{name}")


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


class EagleNgramHeadDrafts(nn.Module):
    """A shared head as a draft model of the method "eagle", which feeds it the chosen tokens and its own output."""

    def __init__(self, *, vllm_config, prefix: str = ""):
        from vllm.model_executor.layers.attention import Attention

        super().__init__()
        config = vllm_config.speculative_config.draft_model_config.hf_config
        model = vllm_config.model_config
        parallel = vllm_config.parallel_config
        self.drafts = HeadDrafts(config.ngram_fields, config.hidden_size, config.ngram_draft_size, config.ngram_bias)
        # vLLM shares the target's embeddings with these.
        self.model, self.lm_head = nn.Module(), nn.Module()
        # Never called: vLLM asks for one.
        size = model.get_head_size()
        self.unused = Attention(
            model.get_num_attention_heads(parallel),
            size,
            1.0,
            num_kv_heads=model.get_num_kv_heads(parallel),
            cache_config=vllm_config.cache_config,
            prefix=f"ngram.{model.get_num_layers(parallel)}.attn",
        )

    def embed_input_ids(self, input_ids):
        return self.model.embed_tokens(input_ids)

    def forward(self, input_ids, positions, hidden_states, inputs_embeds=None):
        tokens = torch.nn.functional.embedding(input_ids, self.lm_head.weight)
        states = self.drafts.heads[0].advance(hidden_states, tokens)
        return states, states

    def compute_logits(self, hidden_states):
        return Chosen(self.drafts.token_ids[self.drafts.shortlist(hidden_states).argmax(-1)])

    def load_weights(self, weights):
        state = {name: tensor for name, tensor in self.state_dict().items() if name.startswith("drafts.")}
        loaded = {f"drafts.{name}": tensor for name, tensor in weights}
        for name in state:
            state[name].copy_(loaded[name])
        return set(loaded)
