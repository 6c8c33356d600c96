"""Tiny Reformers, and an adapter for the slow reference."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, ReformerConfig, ReformerModelWithLMHead

from ngram_wdr_hf import WDRNgramReformerConfig, WDRNgramReformerModelWithLMHead
from tests.support.tiny import VOCAB_SIZE

PAD, FULL = 1, 24
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 8,
    "attention_head_size": 4,
    "num_attention_heads": 2,
    "feed_forward_size": 16,
    "axial_pos_shape": (4, 6),
    "axial_pos_embds_dim": (4, 4),
    "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 6,
    "num_buckets": 4,
    "hash_seed": 0,
    "initializer_range": 0.5,
    "hidden_dropout_prob": 0.0,
    "local_attention_probs_dropout_prob": 0.0,
    "pad_token_id": PAD,
}
LAYERS = {
    "local": {"attn_layers": ["local", "local"]},
    "lsh": {"attn_layers": ["lsh", "local"]},
    "lsh twice": {"attn_layers": ["local", "lsh"], "num_hashes": 2},
}


def tiny_reformer(layers: str = "local", **fields) -> WDRNgramReformerModelWithLMHead:
    torch.manual_seed(0)
    model = WDRNgramReformerModelWithLMHead(WDRNgramReformerConfig(**{**SIZES, **LAYERS[layers], **fields}))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def plain_reformer(layers: str = "local", **fields) -> ReformerModelWithLMHead:
    torch.manual_seed(0)
    config = ReformerConfig(**{**SIZES, **LAYERS[layers], "is_decoder": True, **fields})
    return ReformerModelWithLMHead(config).double().eval()


def read_by_cache(model, field: str, ids: torch.Tensor, prompt_length: int, **kwargs) -> torch.Tensor:
    """Return an output `field` for a prompt read at once and the tokens after it read one by one."""
    output = model(ids[:, :prompt_length], use_cache=True, **kwargs)
    outputs = [output[field]]
    for token in ids[:, prompt_length:].split(1, dim=1):
        output = model(token, past_buckets_states=output.past_buckets_states, use_cache=True, **kwargs)
        outputs.append(output[field])
    return torch.cat(outputs, dim=1)


def slow(model: PreTrainedModel, length: int = 0, prompt_length: int | None = None) -> SimpleNamespace:
    """
    Wrap a model for the slow reference. Its base model reads texts padded to `length`, or, with `prompt_length`, the
    tokens after the prompt one by one.
    """

    def states(input_ids, attention_mask=None, position_ids=None):
        if prompt_length is not None:
            return read_by_cache(model.reformer, "last_hidden_state", input_ids, prompt_length)
        size = input_ids.shape[1]
        if length > size:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            attention_mask = F.pad(mask, (0, length - size))
            input_ids = F.pad(input_ids, (0, length - size), value=PAD)
            position_ids = None if position_ids is None else F.pad(position_ids, (0, length - size), value=3)
        inputs = {"attention_mask": attention_mask, "position_ids": position_ids, "use_cache": False}
        return model.reformer(input_ids, **inputs).last_hidden_state[:, :size]

    return SimpleNamespace(
        base_model=lambda *args, **kwargs: SimpleNamespace(last_hidden_state=states(*args, **kwargs)),
        get_output_embeddings=model.get_output_embeddings,
        ngram_heads=model.ngram_heads,
        config=model.config,
    )
