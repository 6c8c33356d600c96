"""Named settings: the sizes of a model, and how such a model is trained unless the command says otherwise."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """
    Args:
        description (`str`): One line for `--help`.
        config (`dict[str, Any]`): Fields of the model's configuration.
        arguments (`dict[str, Any]`): Defaults for the command's options.
        subword_vocab_size (`int`): The size of a tokenizer of subwords that suits the model.
        backbone (`str`): Of a language model, which: `gpt2`, `tensorized` or `reformer`; of a masked one, `bert` or
            `modernbert`.
        lambdas (`dict[str, float]`): The λ that the paper gives for each kind of heads, if it does.
    """

    description: str
    config: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    subword_vocab_size: int = 50_257
    backbone: str = "gpt2"
    lambdas: dict[str, float] = field(default_factory=dict)


def _gpt2(description: str, layers: int, heads: int, width: int) -> Preset:
    return Preset(
        description,
        # The same function as GPT-2's `gelu_new`, computed in one operation.
        {"n_layer": layers, "n_head": heads, "n_embd": width, "activation_function": "gelu_pytorch_tanh"},
        {
            "block_size": 1024,
            "learning_rate": 6e-4,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.01,
            "weight_decay": 0.1,
            "adam_beta2": 0.95,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "patience": 5,
        },
    )


def _tensorized(
    dataset: str, ngram_size: int, simple: float, wdr: float, config: dict[str, Any], **arguments: Any
) -> Preset:
    """The paper's TT: the original's sizes and steps with the paper's batches and learning rate, and its N and λ."""
    sizes = {"hidden_size": 256, "attention_rank": 40, "intermediate_size": 2100, "ngram_size": ngram_size, **config}
    return Preset(
        f"the paper's Tensorized Transformer for {dataset}, N = {ngram_size}",
        sizes,
        {"learning_rate": 2.5e-3, "lr_scheduler_type": "cosine", "per_device_eval_batch_size": 64, **arguments},
        backbone="tensorized",
        lambdas={"simple": simple, "wdr": wdr},
    )


def _reformer(dataset: str, ngram_size: int, simple: float, wdr: float, batch_size: int) -> Preset:
    """
    The paper's RF: its batches, learning rate, N and λ. It does not tell its sizes; these are Transformers' own, with
    heads as large as the paper's.
    """
    return Preset(
        f"the paper's Reformer for {dataset}, N = {ngram_size}",
        # Positions as small as the words at first: beside larger ones, it learned nothing but the words' frequencies.
        {"hidden_size": 256, "axial_pos_embds_dim": [64, 192], "axial_norm_std": 0.02, "ngram_size": ngram_size},
        {
            "block_size": 512,
            "per_device_train_batch_size": batch_size,
            "per_device_eval_batch_size": 8,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "max_steps": 100_000,
            "eval_strategy": "steps",
            "eval_steps": 1000,
        },
        backbone="reformer",
        lambdas={"simple": simple, "wdr": wdr},
    )


# By the size of the dataset: what the original's scripts for Penn Treebank and WikiText-103 say.
_SMALL_TT = {"num_hidden_layers": 3, "dropout": 0.3}
_LARGE_TT = {"num_hidden_layers": 6, "dropout": 0.1}
_SMALL_TT_RUN = {
    "block_size": 32,
    "per_device_train_batch_size": 120,
    "max_steps": 20_000,
    "eval_strategy": "steps",
    "eval_steps": 500,
}
_LARGE_TT_RUN = {
    "block_size": 80,
    "per_device_train_batch_size": 60,
    "max_steps": 200_000,
    "eval_strategy": "steps",
    "eval_steps": 4000,
}
# Small models for CPUs, with as much in common as the architectures allow.
_TINY_RUN = {
    "learning_rate": 2e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "num_train_epochs": 5,
    "patience": 3,
}

DEFAULT_PRESET = "tiny"
CLM_PRESETS = {
    "tiny": Preset(
        "for CPUs, minutes: 4 layers of 128",
        {
            "n_embd": 128,
            "n_layer": 4,
            "n_head": 4,
            "activation_function": "gelu_pytorch_tanh",
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        {
            "block_size": 128,
            "learning_rate": 2e-3,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.1,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 16,
            "num_train_epochs": 5,
            "patience": 3,
        },
        subword_vocab_size=2048,
    ),
    "paper-tf-small": Preset(
        "the paper's small Transformer: 6 layers of 256, d_ff 2100, dropout 0.3, label smoothing 0.1",
        {
            "n_embd": 256,
            "n_layer": 6,
            "n_head": 4,
            "n_inner": 2100,
            "activation_function": "relu",
            "resid_pdrop": 0.3,
            "embd_pdrop": 0.3,
            "attn_pdrop": 0.3,
            "label_smoothing": 0.1,
        },
        {
            # 32 blocks of 128: the paper's 4K tokens a batch.
            "block_size": 128,
            "per_device_train_batch_size": 32,
            "per_device_eval_batch_size": 32,
            "learning_rate": 2.5e-4,
            "lr_scheduler_type": "constant",
            "num_train_epochs": 1000,
            "patience": 50,
        },
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
        "a small Tensorized Transformer for CPUs: 2 layers of 128, 32 words of context",
        {
            "hidden_size": 128,
            "attention_rank": 24,
            "num_hidden_layers": 2,
            "intermediate_size": 512,
            "dropout": 0.1,
        },
        {"block_size": 32, "per_device_train_batch_size": 32, "per_device_eval_batch_size": 64, **_TINY_RUN},
        subword_vocab_size=2048,
        backbone="tensorized",
    ),
    "tiny-rf": Preset(
        "a small Reformer for CPUs: 4 layers of 64 (heads of 128), 128 words of context",
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
        {"block_size": 128, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 16, **_TINY_RUN},
        subword_vocab_size=2048,
        backbone="reformer",
    ),
    "gpt2": _gpt2("GPT-2's size: 12 layers of 768", 12, 12, 768),
    "gpt2-medium": _gpt2("24 layers of 1024", 24, 16, 1024),
    "gpt2-large": _gpt2("36 layers of 1280", 36, 20, 1280),
    "gpt2-xl": _gpt2("48 layers of 1600", 48, 25, 1600),
}


def _marian(description: str, width: int, inner: int, heads: int, layers: int, config: dict, **preset: Any) -> Preset:
    sides = ("encoder", "decoder")
    sizes = {"d_model": width, "max_position_embeddings": 512}
    for side in sides:
        sizes |= {f"{side}_ffn_dim": inner, f"{side}_attention_heads": heads, f"{side}_layers": layers}
    return Preset(description, {**sizes, **config}, **preset)


def _paper_nmt(**arguments: Any) -> dict[str, Any]:
    return {
        "lr_scheduler_type": "inverse_sqrt",
        "warmup_steps": 4000,
        "adam_beta2": 0.98,
        "num_train_epochs": 1000,
        "patience": 50,
        # As fairseq prepares IWSLT14, on its words.
        "max_length": 175,
        "max_length_ratio": 1.5,
        **arguments,
    }


NMT_PRESETS = {
    "tiny": _marian(
        "for CPUs, minutes: 2 + 2 layers of 128",
        128,
        256,
        4,
        2,
        {"ngram_size": 3, "dropout": 0.1, "label_smoothing": 0.1},
        arguments={
            "learning_rate": 2e-3,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.1,
            "adam_beta2": 0.98,
            "batch_tokens": 2048,
            "num_train_epochs": 12,
            "patience": 5,
        },
        subword_vocab_size=1000,
    ),
    "paper-small": _marian(
        "the paper's for IWSLT14 and WMT18: 6 + 6 layers of 512, d_ff 1024, dropout 0.3, N = 3",
        512,
        1024,
        4,
        6,
        {"ngram_size": 3, "dropout": 0.3, "label_smoothing": 0.1},
        arguments=_paper_nmt(learning_rate=5e-4, batch_tokens=4096),
        subword_vocab_size=10_000,
    ),
    "paper-base": _marian(
        "the paper's for WMT14: 6 + 6 layers of 512, d_ff 2048, dropout 0.1, N = 2",
        512,
        2048,
        8,
        6,
        {"ngram_size": 2, "dropout": 0.1, "label_smoothing": 0.1},
        arguments=_paper_nmt(learning_rate=1e-3, batch_tokens=25_000),
        # The paper's 77M parameters are those of two matrices of 32K subwords; here all embeddings are one.
        subword_vocab_size=32_000,
    ),
}
