"""Tiny models and batches. Weights are large, so that a wrong term shows in every number."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ngram_wdr_hf import WDRNgramConfig, WDRNgramGPT2LMHeadModel

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


def tiny_model(dtype: torch.dtype = torch.float32, seed: int = 0, **fields) -> WDRNgramGPT2LMHeadModel:
    torch.manual_seed(seed)
    model = WDRNgramGPT2LMHeadModel(WDRNgramConfig(**{**SIZES, **fields}))
    # Biases begin at zero, where a forgotten one would not show.
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


def plain_model(dtype: torch.dtype = torch.float32, seed: int = 0, **fields) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(**{**SIZES, **fields})).to(dtype).eval()


def random_ids(batch_size: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCAB_SIZE, (batch_size, length), generator=generator)


def left_pad(rows: list[torch.Tensor], pad_token_id: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of different lengths as one batch, and its attention mask."""
    length = max(len(row) for row in rows)
    ids = torch.stack([torch.cat([row.new_full((length - len(row),), pad_token_id), row]) for row in rows])
    mask = torch.stack([torch.arange(length) >= length - len(row) for row in rows]).long()
    return ids, mask
