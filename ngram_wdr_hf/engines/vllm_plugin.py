"""
Drafts by our heads in vLLM. vLLM finds `register` by the entry point `vllm.general_plugins`, and loads one of the
classes for a folder that `ngram-wdr export` wrote.
"""

import warnings
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

from .head_drafts import HeadDrafts

# By vLLM's method: the class of the draft model. vLLM puts "Eagle" in front of the names of that method.
ARCHITECTURES = {"medusa": "NgramHeadDrafts", "eagle": "EagleNgramHeadDrafts"}


def register() -> None:
    """Tell vLLM about the classes. Every process of it calls this at its start."""
    from vllm import ModelRegistry

    for name in ARCHITECTURES.values():
        ModelRegistry.register_model(name, f"{__name__}:{name}")


class Chosen:
    """Tokens in place of the logits that vLLM would search for them: over the whole vocabulary, that takes longer."""

    def __init__(self, tokens: torch.Tensor):
        self.tokens = tokens

    def argmax(self, dim: int) -> torch.Tensor:
        return self.tokens


class NgramHeadDrafts(nn.Module):
    """
    The draft model of the method "medusa". In each step, it gets the hidden states of the last accepted tokens,
    `(batch_size, d)`, and returns the drafts of all depths.
    """

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
        use_kernels_of_vllm(self.drafts)
        warn_of_sampling()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> list[Chosen]:
        return [Chosen(tokens) for tokens in self.drafts(hidden_states, self.depth).unbind(1)]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        state, loaded = self.state_dict(), {f"drafts.{name}": tensor for name, tensor in weights}
        for name, tensor in loaded.items():
            state[name].copy_(tensor)
        return set(loaded)


class EagleNgramHeadDrafts(NgramHeadDrafts):
    """
    The draft model of the method "eagle", for a simple shared head: vLLM feeds it the tokens that were chosen, first
    by the model itself, and its own output.
    """

    def __init__(self, *, vllm_config, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        # vLLM puts the embeddings of the served model here.
        self.model, self.lm_head = nn.Module(), nn.Module()
        self.unused = unused_attention(vllm_config)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.drafts.heads[0].advance(hidden_states, F.embedding(input_ids, self.lm_head.weight))
        return states, states

    def compute_logits(self, hidden_states: torch.Tensor) -> Chosen:
        return Chosen(self.drafts.token_ids[self.drafts.shortlist(hidden_states).argmax(-1)])


def use_kernels_of_vllm(drafts: nn.Module) -> None:
    """Let vLLM multiply with the linear layers: for a few rows on a CPU, its kernels take a quarter of the time."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    # This method keeps the weights, of which the drafts read rows. vLLM packs them when they are loaded.
    method = UnquantizedEmbeddingMethod()
    for layer in drafts.modules():
        if isinstance(layer, nn.Linear):
            layer.quant_method = method
            layer.forward = lambda x, layer=layer: method.apply(layer, x, layer.bias)


def warn_of_sampling() -> None:
    """Warn of a fault of vLLM's CPU builds: with any drafts, they sample at a temperature that was never set."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    if not current_platform.is_cpu():
        return
    temperatures = expand_batch_to_tokens(torch.tensor([0.5]), torch.tensor([2], dtype=torch.int32), 2)
    if temperatures.tolist() != [0.5, 0.5]:
        warnings.warn(
            "This build of vLLM samples wrong text with any drafts, as it loses the temperature: send requests with "
            "`temperature` 0, or serve without drafts.",
            stacklevel=2,
        )


def unused_attention(vllm_config) -> nn.Module:
    """Return an attention layer like those of the model: never called, but the method "eagle" asks for one."""
    from vllm.model_executor.layers.attention import Attention

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    return Attention(
        model.get_num_attention_heads(parallel),
        model.get_head_size(),
        1.0,
        model.get_num_kv_heads(parallel),
        cache_config=vllm_config.cache_config,
        # Layers are told apart by the number in their name.
        prefix=f"ngram.{model.get_num_layers(parallel)}.attn",
    )
