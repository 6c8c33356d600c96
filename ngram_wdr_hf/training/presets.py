"""Presets of all tasks, and recipes: named defaults, data only."""

from dataclasses import dataclass, field
from typing import Any

DEFAULT_PRESET = "tiny"
# For new heads alone; Trainer's default of 5e-5 is for trained weights.
HEADS_LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Recipe:
    """How heads are trained beside the model, and which ensemble is saved with it."""

    # Text for `--help`.
    description: str
    # Fields of the model's configuration, and further ones for new heads, which those of a checkpoint cannot change.
    fields: dict[str, Any]
    new_heads: dict[str, Any]
    # "fitted" weights, or "lambda", the best λ of a grid; `None` for drafts only.
    ensemble: str | None


_FREE = {"head_gradient": 0.0, "head_loss_weight": 1.0, "head_loss_decay": 1.0, "head_sample_rate": 1 / 3}

RECIPES = {
    "free": Recipe(
        "the heads also read the tokens in between, are trained on a third of the positions in each step, and do not "
        "change the model's training",
        _FREE,
        {"ngram_head_reads": "hidden+tokens"},
        ensemble="fitted",
    ),
    "paper": Recipe(
        "half of the loss goes to the heads, which change the model",
        {"head_gradient": 1.0, "head_loss_weight": None, "head_loss_decay": 1.0, "head_sample_rate": 1.0},
        {"ngram_head_reads": "hidden"},
        ensemble="lambda",
    ),
    "drafts": Recipe(
        "wider heads for drafts alone, trained on their draft tokens at all positions",
        {**_FREE, "head_sample_rate": 1.0, "head_loss_tokens": "draft"},
        {"ngram_head_reads": "hidden+tokens", "ngram_head_expansion": 3},
        ensemble=None,
    ),
}


@dataclass(frozen=True)
class Preset:
    """A model size with defaults for training."""

    # Text for `--help`.
    description: str
    # Fields of the model's configuration, and defaults of the script's options.
    config: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    # Default of `--vocab_size` for a subword tokenizer that is trained.
    subword_vocab_size: int = 50_257
    # A key of `new_models.BACKBONES`.
    backbone: str = "gpt2"
    # Default of `--recipe`; `None` for the script's.
    recipe: str | None = None
    # The paper's λ by `ngram_target`, if it gives any.
    lambdas: dict[str, float] = field(default_factory=dict)


def _dropout(probability: float) -> dict[str, float]:
    """Return GPT-2's three dropout fields, all with this probability."""
    return {"resid_pdrop": probability, "embd_pdrop": probability, "attn_pdrop": probability}


def _blocks(size: int, batch_size: int, eval_batch_size: int | None = None) -> dict[str, int]:
    batches = {"per_device_train_batch_size": batch_size, "per_device_eval_batch_size": eval_batch_size or batch_size}
    return {"block_size": size, **batches}


def _steps(max_steps: int, eval_steps: int) -> dict[str, Any]:
    return {"max_steps": max_steps, "eval_strategy": "steps", "eval_steps": eval_steps}


# Sizes and steps of TT (Tensorized Transformer) from the original scripts for Penn Treebank and WikiText-103.
_TT = {"hidden_size": 256, "attention_rank": 40, "intermediate_size": 2100}
_SMALL_TT = {**_TT, "num_hidden_layers": 3, "dropout": 0.3}, {**_blocks(32, 120, 64), **_steps(20_000, 500)}
_LARGE_TT = {**_TT, "num_hidden_layers": 6, "dropout": 0.1}, {**_blocks(80, 60, 64), **_steps(200_000, 4000)}
# Of the size of RF (Reformer), the paper gives only the number of parameters, for another implementation: these are
# Transformers' defaults, with heads of the paper's size. With larger initial position embeddings, it learned only
# token frequencies.
_RF = {"hidden_size": 256, "axial_pos_embds_dim": [64, 192], "axial_norm_std": 0.02}


def _paper_tt(dataset: str, ngram_size: int, simple: float, wdr: float, sizes: tuple[dict, dict]) -> Preset:
    """Return the preset of the paper's TT for a dataset. `simple` and `wdr` are the paper's λ for these targets."""
    config, run = sizes
    return Preset(
        f"the paper's Tensorized Transformer for {dataset}, N = {ngram_size}",
        {**config, "ngram_size": ngram_size},
        {**run, "learning_rate": 2.5e-3, "lr_scheduler_type": "cosine"},
        backbone="tensorized",
        recipe="paper",
        lambdas={"simple": simple, "wdr": wdr},
    )


def _paper_rf(dataset: str, ngram_size: int, simple: float, wdr: float, batch_size: int) -> Preset:
    """Return the preset of the paper's RF for a dataset. `simple` and `wdr` are the paper's λ for these targets."""
    run = {**_blocks(512, batch_size, 8), **_steps(100_000, 1000)}
    return Preset(
        f"the paper's Reformer for {dataset}, N = {ngram_size}",
        {**_RF, "ngram_size": ngram_size},
        {**run, "learning_rate": 1e-4, "lr_scheduler_type": "constant"},
        backbone="reformer",
        recipe="paper",
        lambdas={"simple": simple, "wdr": wdr},
    )


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
        {"n_embd": 128, "n_layer": 4, "n_head": 4, "activation_function": "gelu_pytorch_tanh", **_dropout(0.0)},
        {**_blocks(128, 8, 16), **_TINY_RUN},
        subword_vocab_size=2048,
    ),
    "paper-tf-small": Preset(
        "the paper's small Transformer: 6 layers, width 256, d_ff 2100, dropout 0.3, label smoothing 0.1",
        {"n_embd": 256, "n_layer": 6, "n_head": 4, "n_inner": 2100, "activation_function": "relu"}
        | {**_dropout(0.3), "label_smoothing": 0.1},
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
    "paper-tt-ptb": _paper_tt("Penn Treebank", 2, 0.2, 0.4, _SMALL_TT),
    "paper-tt-wikitext2": _paper_tt("WikiText-2", 4, 0.2, 0.3, _SMALL_TT),
    "paper-tt-text8": _paper_tt("Text8", 3, 0.2, 0.1, _LARGE_TT),
    "paper-tt-wikitext103": _paper_tt("WikiText-103", 2, 0.1, 0.1, _LARGE_TT),
    "paper-rf-ptb": _paper_rf("Penn Treebank", 4, 0.2, 0.1, 32),
    "paper-rf-wikitext2": _paper_rf("WikiText-2", 2, 0.2, 0.3, 16),
    "paper-rf-text8": _paper_rf("Text8", 3, 0.1, 0.1, 1),
    "paper-rf-wikitext103": _paper_rf("WikiText-103", 4, 0.1, 0.1, 1),
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
    "gpt2": Preset(
        "GPT-2: 12 layers, width 768",
        # GPT-2's `gelu_new`, computed in one operation.
        {"activation_function": "gelu_pytorch_tanh"},
        {
            **_blocks(1024, 8),
            "learning_rate": 6e-4,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.01,
            "weight_decay": 0.1,
            "adam_beta2": 0.95,
            "patience": 5,
        },
    ),
}


def _marian(description: str, width: int, inner: int, heads: int, layers: int, config: dict, **preset: Any) -> Preset:
    sizes = {"d_model": width, "max_position_embeddings": 512, "scale_embedding": True, "activation_function": "relu"}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_ffn_dim": inner, f"{side}_attention_heads": heads, f"{side}_layers": layers}
    return Preset(description, {**sizes, **config}, backbone="marian", **preset)


def _paper_nmt(**arguments: Any) -> dict[str, Any]:
    return {
        "lr_scheduler_type": "inverse_sqrt",
        "warmup_steps": 4000,
        "adam_beta2": 0.98,
        "num_train_epochs": 1000,
        "patience": 50,
        # fairseq's limits for IWSLT14.
        "max_length": 175,
        "max_length_ratio": 1.5,
        **arguments,
    }


NMT_PRESETS = {
    "tiny": _marian(
        "a small Marian that trains in minutes on a CPU: 2 + 2 layers, width 128",
        *(128, 256, 4, 2),
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
        "the paper's model for IWSLT14 and WMT18: 6 + 6 layers, width 512, d_ff 1024, dropout 0.3, N = 3",
        *(512, 1024, 4, 6),
        {"ngram_size": 3, "dropout": 0.3, "label_smoothing": 0.1},
        arguments=_paper_nmt(learning_rate=5e-4, batch_tokens=4096),
        subword_vocab_size=10_000,
        recipe="paper",
    ),
    "paper-base": _marian(
        "the paper's model for WMT14: 6 + 6 layers, width 512, d_ff 2048, dropout 0.1, N = 2",
        *(512, 2048, 8, 6),
        {"ngram_size": 2, "dropout": 0.1, "label_smoothing": 0.1},
        arguments=_paper_nmt(learning_rate=1e-3, batch_tokens=25_000),
        # The paper's 77M parameters include two embedding matrices of this size; here they are tied.
        subword_vocab_size=32_000,
        recipe="paper",
    ),
}


def _modernbert(description: str, layers: int, heads: int, width: int, gated: int, subwords: int, **run) -> Preset:
    """
    Return a preset for CrammedBERT as a ModernBERT (pre-norm, no biases, gated feed-forward layers of size `gated`, no
    dropout), with its optimizer and a triangular schedule: warmup for a quarter of the steps, then linear decay to 0.
    Unlike CrammedBERT, a ModernBERT has rotary positions and a layer before the output embedding, and the batch size
    is constant. `run` holds further defaults of the options.
    """
    config = {
        "ngram_size": 3,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": gated,
        "norm_eps": 1e-12,
        "decoder_bias": False,
        # No sliding windows, whatever the number of layers.
        "global_attn_every_n_layers": 1,
        "sparse_prediction": True,
    }
    arguments = {
        "block_size": 128,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.25,
        "weight_decay": 0.01,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-12,
        "max_grad_norm": 0.5,
        "load_best_model_at_end": False,
        **run,
    }
    return Preset(description, config, arguments, subwords, backbone="modernbert")


_CRAMMED = (16, 12, 768, 1536, 32_768)
_CRAMMED_RUN = {
    "per_device_train_batch_size": 128,
    "gradient_accumulation_steps": 32,
    "per_device_eval_batch_size": 128,
    # About CrammedBERT's data budget: 600,000 batches of 128 sequences.
    "max_steps": 18_750,
    "eval_strategy": "steps",
    "eval_steps": 1000,
}
MLM_PRESETS = {
    "tiny": _modernbert(
        "a small CrammedBERT that trains in minutes on a CPU: 4 layers, width 128",
        *(4, 4, 128, 256, 2048),
        mlm_probability=0.25,
        learning_rate=4e-3,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        num_train_epochs=5,
    ),
    "crammed": _modernbert(
        "like CrammedBERT: 16 layers, width 768, 32,768 subwords, 25%% masked; its length is by steps: 18,750, "
        "about CrammedBERT's data budget",
        *_CRAMMED,
        mlm_probability=0.25,
        **_CRAMMED_RUN,
    ),
    "crammed-15": _modernbert("like `crammed` with 15%% masked", *_CRAMMED, mlm_probability=0.15, **_CRAMMED_RUN),
    "tiny-bert": Preset(
        "a small BERT that trains in minutes on a CPU: 4 layers, width 128",
        {
            "ngram_size": 3,
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        {
            **_blocks(128, 16, 32),
            "learning_rate": 1e-3,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.25,
            "weight_decay": 0.01,
            "num_train_epochs": 5,
            "load_best_model_at_end": False,
        },
        subword_vocab_size=2048,
        backbone="bert",
    ),
}
