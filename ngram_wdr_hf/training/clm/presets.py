"""Presets of causal language models."""

from typing import Any

from ..common.presets import Preset


def _dropout(probability: float) -> dict[str, float]:
    """Return GPT-2's three dropout fields, all with this probability."""
    return {"resid_pdrop": probability, "embd_pdrop": probability, "attn_pdrop": probability}


def _blocks(size: int, batch_size: int, eval_batch_size: int | None = None) -> dict[str, int]:
    batches = {"per_device_train_batch_size": batch_size, "per_device_eval_batch_size": eval_batch_size or batch_size}
    return {"block_size": size, **batches}


def _steps(max_steps: int, eval_steps: int) -> dict[str, Any]:
    return {"max_steps": max_steps, "eval_strategy": "steps", "eval_steps": eval_steps}


def _gpt2(description: str, layers: int, heads: int, width: int) -> Preset:
    return Preset(
        description,
        # GPT-2's `gelu_new`, computed in one operation.
        {"n_layer": layers, "n_head": heads, "n_embd": width, "activation_function": "gelu_pytorch_tanh"},
        {
            **_blocks(1024, 8),
            "learning_rate": 6e-4,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.01,
            "weight_decay": 0.1,
            "adam_beta2": 0.95,
            "patience": 5,
        },
    )


def _tensorized(
    dataset: str, ngram_size: int, simple: float, wdr: float, config: dict[str, Any], **arguments: Any
) -> Preset:
    """
    Return the preset of the paper's TT (Tensorized Transformer) for a dataset: sizes and steps of the original TT, all
    else from the paper. `simple` and `wdr` are the paper's λ for these targets.
    """
    sizes = {"hidden_size": 256, "attention_rank": 40, "intermediate_size": 2100, "ngram_size": ngram_size, **config}
    return Preset(
        f"the paper's Tensorized Transformer for {dataset}, N = {ngram_size}",
        sizes,
        {"learning_rate": 2.5e-3, "lr_scheduler_type": "cosine", **arguments},
        backbone="tensorized",
        recipe="paper",
        lambdas={"simple": simple, "wdr": wdr},
    )


def _reformer(dataset: str, ngram_size: int, simple: float, wdr: float, batch_size: int) -> Preset:
    """
    Return the preset of the paper's RF (Reformer) for a dataset. Of its size, the paper gives only the number of
    parameters, for another implementation: these are the defaults of Transformers, with heads of the paper's size.
    `simple` and `wdr` are the paper's λ for these targets.
    """
    return Preset(
        f"the paper's Reformer for {dataset}, N = {ngram_size}",
        # With larger initial position embeddings, it learned only token frequencies.
        {"hidden_size": 256, "axial_pos_embds_dim": [64, 192], "axial_norm_std": 0.02, "ngram_size": ngram_size},
        {
            **_blocks(512, batch_size, 8),
            **_steps(100_000, 1000),
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
        },
        backbone="reformer",
        recipe="paper",
        lambdas={"simple": simple, "wdr": wdr},
    )


# From the original TT's scripts for Penn Treebank (small) and WikiText-103 (large).
_SMALL_TT = {"num_hidden_layers": 3, "dropout": 0.3}
_LARGE_TT = {"num_hidden_layers": 6, "dropout": 0.1}
_SMALL_TT_RUN = {**_blocks(32, 120, 64), **_steps(20_000, 500)}
_LARGE_TT_RUN = {**_blocks(80, 60, 64), **_steps(200_000, 4000)}
_TINY_RUN = {
    "learning_rate": 2e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "num_train_epochs": 5,
    "patience": 3,
}

CLM_PRESETS = {
    "tiny": Preset(
        "a small GPT-2 that trains in minutes on a CPU: 4 layers, width 128",
        {
            "n_embd": 128,
            "n_layer": 4,
            "n_head": 4,
            "activation_function": "gelu_pytorch_tanh",
            **_dropout(0.0),
        },
        {**_blocks(128, 8, 16), **_TINY_RUN},
        subword_vocab_size=2048,
    ),
    "paper-tf-small": Preset(
        "the paper's small Transformer: 6 layers, width 256, d_ff 2100, dropout 0.3, label smoothing 0.1",
        {
            "n_embd": 256,
            "n_layer": 6,
            "n_head": 4,
            "n_inner": 2100,
            "activation_function": "relu",
            **_dropout(0.3),
            "label_smoothing": 0.1,
        },
        {
            # 32 * 128: the paper's 4K tokens per batch.
            **_blocks(128, 32),
            "learning_rate": 2.5e-4,
            "lr_scheduler_type": "constant",
            "num_train_epochs": 1000,
            "patience": 50,
        },
        recipe="paper",
    ),
    "paper-tt-ptb": _tensorized("Penn Treebank", 2, 0.2, 0.4, _SMALL_TT, **_SMALL_TT_RUN),
    "paper-tt-wikitext2": _tensorized("WikiText-2", 4, 0.2, 0.3, _SMALL_TT, **_SMALL_TT_RUN),
    "paper-tt-text8": _tensorized("Text8", 3, 0.2, 0.1, _LARGE_TT, **_LARGE_TT_RUN),
    "paper-tt-wikitext103": _tensorized("WikiText-103", 2, 0.1, 0.1, _LARGE_TT, **_LARGE_TT_RUN),
    "paper-rf-ptb": _reformer("Penn Treebank", 4, 0.2, 0.1, 32),
    "paper-rf-wikitext2": _reformer("WikiText-2", 2, 0.2, 0.3, 16),
    "paper-rf-text8": _reformer("Text8", 3, 0.1, 0.1, 1),
    "paper-rf-wikitext103": _reformer("WikiText-103", 4, 0.1, 0.1, 1),
    "tiny-tt": Preset(
        "a small Tensorized Transformer for CPUs: 2 layers, width 128, 32 tokens of context",
        {"hidden_size": 128, "attention_rank": 24, "num_hidden_layers": 2, "intermediate_size": 512, "dropout": 0.1},
        {**_blocks(32, 32, 64), **_TINY_RUN},
        subword_vocab_size=2048,
        backbone="tensorized",
    ),
    "tiny-rf": Preset(
        "a small Reformer for CPUs: 4 layers, width 64 (N-gram heads: 128), 128 tokens of context",
        {
            "hidden_size": 64,
            "attention_head_size": 32,
            "num_attention_heads": 2,
            "feed_forward_size": 256,
            "attn_layers": ["local", "lsh", "local", "lsh"],
            "axial_pos_embds_dim": [32, 32],
            "axial_norm_std": 0.02,
            "local_attn_chunk_length": 32,
            "lsh_attn_chunk_length": 32,
        },
        {**_blocks(128, 8, 16), **_TINY_RUN},
        subword_vocab_size=2048,
        backbone="reformer",
    ),
    "gpt2": _gpt2("GPT-2: 12 layers, width 768", 12, 12, 768),
    "gpt2-medium": _gpt2("GPT-2 medium: 24 layers, width 1024", 24, 16, 1024),
    "gpt2-large": _gpt2("GPT-2 large: 36 layers, width 1280", 36, 20, 1280),
    "gpt2-xl": _gpt2("GPT-2 XL: 48 layers, width 1600", 48, 25, 1600),
}
