"""GPT-2 with N-gram heads."""

from collections.abc import Sequence

import torch
from transformers import Cache, GenerationMixin, GPT2Config, GPT2LMHeadModel

from ..method.configuration import NgramConfigMixin
from ..modeling.causal import NgramCausalLMOutput, NgramMixin
from .registry import register


class WDRNgramConfig(NgramConfigMixin, GPT2Config):
    """A [`GPT2Config`] with the N-gram fields: see [`NgramConfigMixin`]."""

    model_type = "wdr_ngram_gpt2"


class WDRNgramGPT2LMHeadModel(NgramMixin, GPT2LMHeadModel, GenerationMixin):
    """A [`GPT2LMHeadModel`] with N-gram heads: see [`NgramMixin`]."""

    config: WDRNgramConfig

    # GPT-2 has its arguments in another order than newer models, and more of them.
    def forward(  # pyrefly: ignore[bad-override]
        self,
        input_ids: torch.LongTensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        ensemble_lambda: float | Sequence[float] | None = None,
        ensemble_weights: Sequence[float] | Sequence[Sequence[float]] | None = None,
        last_hidden_state: torch.Tensor | None = None,
        **kwargs,
    ) -> NgramCausalLMOutput:
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids}
        inputs |= {"attention_mask": attention_mask, "position_ids": position_ids}
        inputs |= {"past_key_values": past_key_values, "use_cache": use_cache}
        inputs |= {"encoder_hidden_states": encoder_hidden_states, "encoder_attention_mask": encoder_attention_mask}
        own = (ensemble_lambda, ensemble_weights, last_hidden_state)
        return self.ngram_forward(inputs, labels, logits_to_keep, *own, **kwargs)


register(WDRNgramGPT2LMHeadModel)
