"""The table of kinds: tiny models, with large weights, so that a wrong term changes every result, and their texts."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BartForConditionalGeneration,
    BertForMaskedLM,
    GPT2LMHeadModel,
    MarianMTModel,
    ModernBertForMaskedLM,
    PreTrainedModel,
    T5ForConditionalGeneration,
)

from ngram_wdr_hf import (
    WDRNgramBartForConditionalGeneration,
    WDRNgramBertForMaskedLM,
    WDRNgramGPT2LMHeadModel,
    WDRNgramMarianMTModel,
    WDRNgramModernBertForMaskedLM,
    WDRNgramT5ForConditionalGeneration,
)

VOCAB_SIZE = 37
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "n_positions": 64,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "initializer_range": 0.3,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
TRANSLATION_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "init_std": 0.3,
    "dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
LLAMA_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 1,
}
T5_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
}
MASKED_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 1,
}
BERT_SIZES = {**MASKED_SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODERNBERT_SIZES = MASKED_SIZES | dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2)


@dataclass(frozen=True)
class Kind:
    """Our class, the stock class, the Auto class that loads both, and configuration fields of a tiny model."""

    ours: type[PreTrainedModel]
    stock: type[PreTrainedModel]
    auto: type
    sizes: dict[str, Any]


KINDS = {
    "gpt2": Kind(WDRNgramGPT2LMHeadModel, GPT2LMHeadModel, AutoModelForCausalLM, SIZES),
    "marian": Kind(WDRNgramMarianMTModel, MarianMTModel, AutoModelForSeq2SeqLM, TRANSLATION_SIZES),
    "bart": Kind(
        WDRNgramBartForConditionalGeneration, BartForConditionalGeneration, AutoModelForSeq2SeqLM, TRANSLATION_SIZES
    ),
    "t5": Kind(WDRNgramT5ForConditionalGeneration, T5ForConditionalGeneration, AutoModelForSeq2SeqLM, T5_SIZES),
    "bert": Kind(WDRNgramBertForMaskedLM, BertForMaskedLM, AutoModelForMaskedLM, BERT_SIZES),
    "modernbert": Kind(WDRNgramModernBertForMaskedLM, ModernBertForMaskedLM, AutoModelForMaskedLM, MODERNBERT_SIZES),
}
SEQ2SEQ = {name: kind for name, kind in KINDS.items() if kind.auto is AutoModelForSeq2SeqLM}
MASKED = [name for name, kind in KINDS.items() if kind.auto is AutoModelForMaskedLM]


def make(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **fields) -> Any:
    """Build our model by its name in `KINDS`."""
    kind = KINDS[name]
    torch.manual_seed(seed)
    model = kind.ours(kind.ours.config_class(**{**kind.sizes, **fields}))
    # Zero biases would hide a forgotten one.
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(std=0.3)
    if name == "t5":
        # With the default initialization, heads have hardly any effect next to T5's large embeddings.
        for head in model.ngram_heads:
            torch.nn.init.normal_(head.fc_in.weight)
            torch.nn.init.normal_(head.fc_out.weight)
    return model.to(dtype).eval()


def make_stock(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **fields) -> Any:
    """Build the stock model of the same size."""
    kind = KINDS[name]
    torch.manual_seed(seed)
    return kind.stock(kind.stock.config_class(**{**kind.sizes, **fields})).to(dtype).eval()


def stock_twin(model: PreTrainedModel, plain: PreTrainedModel) -> PreTrainedModel:
    """Load the weights of `model`, except the heads, into the stock model `plain`."""
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing and all(key.startswith("ngram_heads.") for key in unexpected)
    return plain


tiny_model, plain_model = partial(make, "gpt2"), partial(make_stock, "gpt2")
tiny_seq2seq, plain_seq2seq = make, make_stock


def model_of(name: str, **fields) -> PreTrainedModel:
    return make(name, torch.float64, **fields)


def random_ids(batch_size: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCAB_SIZE, (batch_size, length), generator=generator)


def left_pad(rows: list[torch.Tensor], pad_token_id: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-pad rows of different lengths. Return the batch and its attention mask."""
    length = max(len(row) for row in rows)
    ids = torch.stack([torch.cat([row.new_full((length - len(row),), pad_token_id), row]) for row in rows])
    mask = torch.stack([torch.arange(length) >= length - len(row) for row in rows]).long()
    return ids, mask


def right_pad(rows: list[torch.Tensor], pad_token_id: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad rows of different lengths. Return the batch and its attention mask."""
    ids, mask = left_pad([row.flip(0) for row in rows], pad_token_id)
    return ids.flip(1), mask.flip(1)


def prompts(batch_size: int, name: str = "gpt2", seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a batch of prompts of different lengths, padded on the side that the model expects."""
    pad = right_pad if name in SEQ2SEQ else left_pad
    ids, mask = pad([random_ids(1, length, seed=length + seed)[0] for length in (6, 3, 1, 4)[:batch_size]])
    return {"input_ids": ids, "attention_mask": mask}
