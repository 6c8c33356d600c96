"""Presets of masked language models."""

from typing import Any

from ..common.presets import Preset

# Two levels of word differences: the paper's best on average.
NGRAM_SIZE = 3


def _modernbert(description: str, layers: int, heads: int, width: int, gated: int, subwords: int, **run) -> Preset:
    """
    Return a preset for CrammedBERT as a ModernBERT (pre-norm, no biases, gated feed-forward layers of size `gated`, no
    dropout), with its optimizer and a triangular schedule: warmup for a quarter of the steps, then linear decay to 0.
    Unlike CrammedBERT, a ModernBERT has rotary positions and a layer before the output embedding, and the batch size
    is constant. `run` holds further defaults of the options.
    """
    config = {
        "ngram_size": NGRAM_SIZE,
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


def _bert(description: str, config: dict[str, Any], subwords: int, **run) -> Preset:
    arguments = {
        "lr_scheduler_type": "linear",
        "weight_decay": 0.01,
        "per_device_eval_batch_size": 32,
        "load_best_model_at_end": False,
        **run,
    }
    return Preset(description, {"ngram_size": NGRAM_SIZE, **config}, arguments, subwords, backbone="bert")


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
    "tiny-bert": _bert(
        "a small BERT that trains in minutes on a CPU: 4 layers, width 128",
        {
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        2048,
        block_size=128,
        learning_rate=1e-3,
        warmup_steps=0.25,
        per_device_train_batch_size=16,
        num_train_epochs=5,
    ),
    "bert-base": _bert(
        "BERT base: 12 layers, width 768, 30,522 subwords",
        {},
        30_522,
        block_size=512,
        learning_rate=1e-4,
        warmup_steps=0.01,
        per_device_train_batch_size=32,
    ),
}
