"""
Presets of all tasks, and recipes: named defaults, data only. Fields of configurations and options are written as on a
command line, `name=value`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

DEFAULT_PRESET = "tiny"
# For new heads alone; Trainer's default of 5e-5 is for trained weights.
HEADS_LEARNING_RATE = 3e-3


def read_fields(words: Iterable[str]) -> dict[str, Any]:
    """Return the fields of words such as `n_layer=3`, with values as in YAML."""
    pairs = (word.partition("=") for word in words)
    return {name: yaml.safe_load(value) for name, _, value in pairs}


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
    # A key of `new_models.BACKBONES`, and the fields of its configuration.
    backbone: str
    config: str
    # Defaults of the script's options, that of `--vocab_size` for a subword tokenizer, and that of `--recipe`.
    options: str
    subword_vocab_size: int = 50_257
    recipe: str | None = None
    # The paper's λ by `ngram_target`, if it gives any.
    lambdas: dict[str, float] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, str]:
        """The defaults of the script's options, as texts."""
        return dict(word.split("=") for word in self.options.split())


def _blocks(size: int, batch_size: int, eval_batch_size: int | None = None) -> str:
    return (
        f"block_size={size} per_device_train_batch_size={batch_size} "
        f"per_device_eval_batch_size={eval_batch_size or batch_size} "
    )


_TINY_RUN = "learning_rate=2e-3 lr_scheduler_type=cosine warmup_steps=0.1 num_train_epochs=5 patience=3"

# Sizes and steps of TT (Tensorized Transformer) are those of the original scripts for Penn Treebank and WikiText-103.
_TT = "hidden_size=256 attention_rank=40 intermediate_size=2100 "
_TT_RUN = "eval_strategy=steps lr_scheduler_type=cosine learning_rate=2.5e-3 "
_SMALL_TT = Preset(
    "Tensorized Transformer",
    "tensorized",
    _TT + "num_hidden_layers=3 dropout=0.3",
    _blocks(32, 120, 64) + _TT_RUN + "max_steps=20000 eval_steps=500",
)
_LARGE_TT = replace(
    _SMALL_TT,
    config=_TT + "num_hidden_layers=6 dropout=0.1",
    options=_blocks(80, 60, 64) + _TT_RUN + "max_steps=200000 eval_steps=4000",
)
# Of RF (Reformer), the paper gives only the number of parameters, for another implementation: these are Transformers'
# defaults, with heads of the paper's size. With larger initial position embeddings, it learned only token frequencies.
_RF = "hidden_size=256 axial_pos_embds_dim=[64,192] axial_norm_std=0.02"
_RF_RUN = "eval_strategy=steps lr_scheduler_type=constant max_steps=100000 eval_steps=1000 learning_rate=1e-4"
_RF_32, _RF_16, _RF_1 = (Preset("Reformer", "reformer", _RF, _blocks(512, size, 8) + _RF_RUN) for size in (32, 16, 1))


def _paper(model: Preset, dataset: str, ngram_size: int, simple: float, wdr: float) -> Preset:
    """Return the preset of a model of the paper for a dataset. `simple` and `wdr` are its λ for these targets."""
    description = f"the paper's {model.description} for {dataset}, N = {ngram_size}"
    config, lambdas = f"{model.config} ngram_size={ngram_size}", {"simple": simple, "wdr": wdr}
    return replace(model, description=description, config=config, recipe="paper", lambdas=lambdas)


CLM_PRESETS = {
    "tiny": Preset(
        "a small GPT-2 that trains in minutes on a CPU: 4 layers, width 128",
        "gpt2",
        # GPT-2's `gelu_new`, computed in one operation.
        "n_embd=128 n_layer=4 n_head=4 activation_function=gelu_pytorch_tanh resid_pdrop=0.0 embd_pdrop=0.0 "
        "attn_pdrop=0.0",
        _blocks(128, 8, 16) + _TINY_RUN,
        subword_vocab_size=2048,
    ),
    "paper-tf-small": Preset(
        "the paper's small Transformer: 6 layers, width 256, d_ff 2100, dropout 0.3, label smoothing 0.1",
        "gpt2",
        "n_embd=256 n_layer=6 n_head=4 n_inner=2100 activation_function=relu resid_pdrop=0.3 embd_pdrop=0.3 "
        "attn_pdrop=0.3 label_smoothing=0.1",
        # 32 * 128: the paper's 4K tokens per batch.
        _blocks(128, 32) + "learning_rate=2.5e-4 lr_scheduler_type=constant num_train_epochs=1000 patience=50",
        recipe="paper",
    ),
    "paper-tt-ptb": _paper(_SMALL_TT, "Penn Treebank", 2, 0.2, 0.4),
    "paper-tt-wikitext2": _paper(_SMALL_TT, "WikiText-2", 4, 0.2, 0.3),
    "paper-tt-text8": _paper(_LARGE_TT, "Text8", 3, 0.2, 0.1),
    "paper-tt-wikitext103": _paper(_LARGE_TT, "WikiText-103", 2, 0.1, 0.1),
    "paper-rf-ptb": _paper(_RF_32, "Penn Treebank", 4, 0.2, 0.1),
    "paper-rf-wikitext2": _paper(_RF_16, "WikiText-2", 2, 0.2, 0.3),
    "paper-rf-text8": _paper(_RF_1, "Text8", 3, 0.1, 0.1),
    "paper-rf-wikitext103": _paper(_RF_1, "WikiText-103", 4, 0.1, 0.1),
    "tiny-tt": Preset(
        "a small Tensorized Transformer for CPUs: 2 layers, width 128, 32 tokens of context",
        "tensorized",
        "hidden_size=128 attention_rank=24 num_hidden_layers=2 intermediate_size=512 dropout=0.1",
        _blocks(32, 32, 64) + _TINY_RUN,
        subword_vocab_size=2048,
    ),
    "tiny-rf": Preset(
        "a small Reformer for CPUs: 4 layers, width 64 (N-gram heads: 128), 128 tokens of context",
        "reformer",
        "hidden_size=64 attention_head_size=32 num_attention_heads=2 feed_forward_size=256 "
        "attn_layers=[local,lsh,local,lsh] axial_pos_embds_dim=[32,32] axial_norm_std=0.02 "
        "local_attn_chunk_length=32 lsh_attn_chunk_length=32",
        _blocks(128, 8, 16) + _TINY_RUN,
        subword_vocab_size=2048,
    ),
    "gpt2": Preset(
        "GPT-2: 12 layers, width 768",
        "gpt2",
        "activation_function=gelu_pytorch_tanh",
        _blocks(1024, 8) + "learning_rate=6e-4 lr_scheduler_type=cosine warmup_steps=0.01 weight_decay=0.1 "
        "adam_beta2=0.95 patience=5",
    ),
}


def _marian(description: str, width: int, inner: int, heads: int, layers: int, config: str, **preset: Any) -> Preset:
    sides = " ".join(
        f"{side}_ffn_dim={inner} {side}_attention_heads={heads} {side}_layers={layers}"
        for side in ("encoder", "decoder")
    )
    config = (
        f"d_model={width} max_position_embeddings=512 scale_embedding=true activation_function=relu "
        f"label_smoothing=0.1 {sides} {config}"
    )
    return Preset(description, "marian", config, **preset)


# The limits of lengths are those of fairseq for IWSLT14.
_PAPER_NMT = (
    "lr_scheduler_type=inverse_sqrt warmup_steps=4000 adam_beta2=0.98 num_train_epochs=1000 patience=50 "
    "max_length=175 max_length_ratio=1.5 "
)
NMT_PRESETS = {
    "tiny": _marian(
        "a small Marian that trains in minutes on a CPU: 2 + 2 layers, width 128",
        *(128, 256, 4, 2, "ngram_size=3 dropout=0.1"),
        options="learning_rate=2e-3 lr_scheduler_type=linear warmup_steps=0.1 adam_beta2=0.98 batch_tokens=2048 "
        "num_train_epochs=12 patience=5",
        subword_vocab_size=1000,
    ),
    "paper-small": _marian(
        "the paper's model for IWSLT14 and WMT18: 6 + 6 layers, width 512, d_ff 1024, dropout 0.3, N = 3",
        *(512, 1024, 4, 6, "ngram_size=3 dropout=0.3"),
        options=_PAPER_NMT + "learning_rate=5e-4 batch_tokens=4096",
        subword_vocab_size=10_000,
        recipe="paper",
    ),
    "paper-base": _marian(
        "the paper's model for WMT14: 6 + 6 layers, width 512, d_ff 2048, dropout 0.1, N = 2",
        *(512, 2048, 8, 6, "ngram_size=2 dropout=0.1"),
        options=_PAPER_NMT + "learning_rate=1e-3 batch_tokens=25000",
        # The paper's 77M parameters include two embedding matrices of this size; here they are tied.
        subword_vocab_size=32_000,
        recipe="paper",
    ),
}

# CrammedBERT as a ModernBERT (pre-norm, no biases, gated feed-forward layers, no dropout), with its optimizer and a
# triangular schedule: warmup for a quarter of the steps, then linear decay to 0. Unlike CrammedBERT, a ModernBERT has
# rotary positions and a layer before the output embedding, and the batch size is constant.
_CRAMMED_BERT = (
    "ngram_size=3 norm_eps=1.0e-12 decoder_bias=false sparse_prediction=true "
    # No sliding windows, whatever the number of layers.
    "global_attn_every_n_layers=1 "
)
_CRAMMED_RUN = (
    "block_size=128 lr_scheduler_type=linear warmup_steps=0.25 weight_decay=0.01 adam_beta2=0.98 adam_epsilon=1e-12 "
    "max_grad_norm=0.5 load_best_model_at_end=false "
)


def _crammed(description: str, mlm_probability: float) -> Preset:
    return Preset(
        description,
        "modernbert",
        _CRAMMED_BERT + "hidden_size=768 num_hidden_layers=16 num_attention_heads=12 intermediate_size=1536",
        # About CrammedBERT's data budget: 600,000 batches of 128 sequences.
        _CRAMMED_RUN + "learning_rate=1e-3 max_steps=18750 eval_strategy=steps eval_steps=1000 gradient_accumulation_"
        f"steps=32 per_device_train_batch_size=128 per_device_eval_batch_size=128 mlm_probability={mlm_probability}",
        subword_vocab_size=32_768,
    )


MLM_PRESETS = {
    "tiny": Preset(
        "a small CrammedBERT that trains in minutes on a CPU: 4 layers, width 128",
        "modernbert",
        _CRAMMED_BERT + "hidden_size=128 num_hidden_layers=4 num_attention_heads=4 intermediate_size=256",
        _CRAMMED_RUN + "mlm_probability=0.25 learning_rate=4e-3 per_device_train_batch_size=16 "
        "per_device_eval_batch_size=32 num_train_epochs=5",
        subword_vocab_size=2048,
    ),
    "crammed": _crammed(
        "like CrammedBERT: 16 layers, width 768, 32,768 subwords, 25%% masked; its length is by steps: 18,750, "
        "about CrammedBERT's data budget",
        0.25,
    ),
    "crammed-15": _crammed("like `crammed` with 15%% masked", 0.15),
    "tiny-bert": Preset(
        "a small BERT that trains in minutes on a CPU: 4 layers, width 128",
        "bert",
        "ngram_size=3 hidden_size=128 num_hidden_layers=4 num_attention_heads=4 intermediate_size=512 "
        "hidden_dropout_prob=0.0 attention_probs_dropout_prob=0.0",
        _blocks(128, 16, 32) + "learning_rate=1e-3 lr_scheduler_type=linear warmup_steps=0.25 weight_decay=0.01 "
        "num_train_epochs=5 load_best_model_at_end=false",
        subword_vocab_size=2048,
    ),
}
