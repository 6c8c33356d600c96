"""
The named backbones, and tiny models of them in float64. A new backbone needs an entry here; all tests in
`tests/backbones/test_named*.py` then cover it.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    BartForConditionalGeneration,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    GemmaForCausalLM,
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    MarianMTModel,
    MistralForCausalLM,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen3ForCausalLM,
    ReformerModelWithLMHead,
    T5ForConditionalGeneration,
)

import ngram_wdr_hf as ours
from tests.support.tiny import SIZES as GPT2_SIZES
from tests.support.tiny import T5_SIZES, TRANSLATION_SIZES, VOCAB_SIZE, random_ids, stock_twin

TOKENS = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
DECODER_SIZES = {
    **TOKENS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LLAMA_SIZES = {**DECODER_SIZES, "num_key_value_heads": 1, "head_dim": 8}
# Low enough to affect most logits.
CAPPED = {"final_logit_softcapping": 3.0}
SLIDING = {"sliding_window": 5}
OPT_SIZES = {
    **TOKENS,
    "hidden_size": 16,
    "word_embed_proj_dim": 16,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "init_std": 0.3,
    "dropout": 0.0,
}
REFORMER_SIZES = {
    **TOKENS,
    "hidden_size": 16,
    "feed_forward_size": 24,
    "num_attention_heads": 2,
    "attention_head_size": 8,
    "attn_layers": ["local", "local"],
    "local_attn_chunk_length": 4,
    "axial_pos_embds": False,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0,
    "local_attention_probs_dropout_prob": 0.0,
    "is_decoder": True,
}
TENSORIZED_SIZES = {
    **TOKENS,
    "max_position_embeddings": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "attention_rank": 6,
    "num_attention_blocks": 2,
    "intermediate_size": 24,
    "dropout": 0.0,
    "initializer_range": 0.3,
}
REFORMER_REFUSES = {
    # Its own cache keeps hidden states and hash buckets.
    "caches of Transformers": "past_buckets_states",
    "padded prompts": "attention_mask",
    "drafts": "use_mtp",
    # An error of the stock class, whose reversible layers need none.
    "gradient checkpointing": "(gradient|activation) checkpointing",
}


@dataclass(frozen=True)
class Backbone:
    r"""
    Args:
        ours (`type[PreTrainedModel]`): Our class.
        stock (`type[PreTrainedModel]`): The stock class it derives from.
        sizes (`dict[str, Any]`): Configuration fields of both.
        refuses (`dict[str, str]`, *optional*): Unsupported features, and a name that the error contains.
        begins_alike (`bool`, *optional*, defaults to `True`): Whether the same seed gives both the same weights.
        padded_dtype (`torch.dtype`, *optional*, defaults to `torch.float64`): The type for left-padded texts.
    """

    ours: type[PreTrainedModel]
    stock: type[PreTrainedModel]
    sizes: dict[str, Any]
    refuses: dict[str, str] = field(default_factory=dict)
    begins_alike: bool = True
    padded_dtype: torch.dtype = torch.float64


BACKBONES = {
    "gpt2": Backbone(ours.WDRNgramGPT2LMHeadModel, GPT2LMHeadModel, GPT2_SIZES),
    "llama": Backbone(ours.WDRNgramLlamaForCausalLM, LlamaForCausalLM, LLAMA_SIZES),
    "qwen3": Backbone(ours.WDRNgramQwen3ForCausalLM, Qwen3ForCausalLM, LLAMA_SIZES),
    "mistral": Backbone(ours.WDRNgramMistralForCausalLM, MistralForCausalLM, {**LLAMA_SIZES, **SLIDING}),
    "gemma": Backbone(ours.WDRNgramGemmaForCausalLM, GemmaForCausalLM, LLAMA_SIZES),
    "gemma2": Backbone(
        ours.WDRNgramGemma2ForCausalLM,
        Gemma2ForCausalLM,
        {**LLAMA_SIZES, **CAPPED, **SLIDING},
        # Its attention casts float64 masks to float32, which gives NaN for padding that sees nothing.
        padded_dtype=torch.float32,
    ),
    "gemma3": Backbone(
        ours.WDRNgramGemma3ForCausalLM,
        Gemma3ForCausalLM,
        {**LLAMA_SIZES, **CAPPED, **SLIDING, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt_neox": Backbone(ours.WDRNgramGPTNeoXForCausalLM, GPTNeoXForCausalLM, DECODER_SIZES),
    "opt": Backbone(ours.WDRNgramOPTForCausalLM, OPTForCausalLM, OPT_SIZES),
    "opt, narrow embeddings": Backbone(
        ours.WDRNgramOPTForCausalLM, OPTForCausalLM, {**OPT_SIZES, "word_embed_proj_dim": 8}
    ),
    "reformer": Backbone(
        ours.WDRNgramReformerModelWithLMHead, ReformerModelWithLMHead, REFORMER_SIZES, REFORMER_REFUSES
    ),
    "tensorized": Backbone(
        ours.WDRNgramTensorizedTransformerLMHeadModel, ours.TensorizedTransformerLMHeadModel, TENSORIZED_SIZES
    ),
    "marian": Backbone(ours.WDRNgramMarianMTModel, MarianMTModel, TRANSLATION_SIZES),
    "bart": Backbone(ours.WDRNgramBartForConditionalGeneration, BartForConditionalGeneration, TRANSLATION_SIZES),
    "t5": Backbone(
        ours.WDRNgramT5ForConditionalGeneration,
        T5ForConditionalGeneration,
        T5_SIZES,
        # Stock T5 initializes its shared embedding twice.
        begins_alike=False,
    ),
}

# The source text for encoder-decoder models.
SOURCE = random_ids(2, 6, seed=7)


def tiny_backbone(name: str, seed: int = 0, **fields) -> PreTrainedModel:
    """Build our model by its name in `BACKBONES`."""
    model = _build(BACKBONES[name].ours, {**BACKBONES[name].sizes, **fields}, seed)
    # With the default initialization, heads have hardly any effect next to T5's large embeddings.
    deviation = model.get_output_embeddings().weight.std().item()
    for head in model.ngram_heads:
        for layer in (head.fc_in, head.fc_out):
            torch.nn.init.normal_(layer.weight, std=deviation)
    return model


def plain_backbone(name: str, seed: int = 0, **fields) -> PreTrainedModel:
    """Build the stock model of the same size."""
    return _build(BACKBONES[name].stock, {**BACKBONES[name].sizes, **fields}, seed)


def plain_twin(name: str, model: PreTrainedModel) -> PreTrainedModel:
    """Build the stock model with the weights of `model`, except the heads."""
    return stock_twin(model, plain_backbone(name, seed=1))


def _build(model_class: type[PreTrainedModel], fields: dict[str, Any], seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**fields)).double()
    # Biases of 0 and norm weights of 1 would hide a forgotten one.
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.3)
    return model.eval()


def forward_inputs(
    model: PreTrainedModel,
    ids: torch.LongTensor,
    mask: torch.LongTensor | None = None,
    positions: torch.LongTensor | None = None,
) -> dict[str, torch.Tensor]:
    """Return the arguments of `forward` for a text, which an encoder-decoder model reads in its decoder."""
    text = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    text = {name: value for name, value in text.items() if value is not None}
    if not model.config.is_encoder_decoder:
        return text
    return {"input_ids": SOURCE[: len(ids)], **{f"decoder_{name}": value for name, value in text.items()}}


def reference_inputs(
    model: PreTrainedModel, ids: torch.LongTensor, mask: torch.LongTensor | None = None
) -> dict[str, torch.Tensor]:
    """Return the arguments of the slow reference for the same text."""
    source = {"encoder_ids": SOURCE[: len(ids)]} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": mask, **source}


# Many backbones normalize in float32, even in a float64 model.
TOLERANCES = {torch.float64: {"rtol": 1e-5, "atol": 1e-6}, torch.float32: {"rtol": 1e-4, "atol": 1e-4}}


def assert_close(actual: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCES[actual.dtype], msg=lambda text: f"{what}: {text}")
