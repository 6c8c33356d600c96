"""Presets of translation models."""

from typing import Any

from ..common.presets import Preset


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
