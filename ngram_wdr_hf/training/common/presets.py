"""Presets: named model sizes with defaults for training."""

from dataclasses import dataclass, field
from typing import Any

DEFAULT_PRESET = "tiny"


@dataclass(frozen=True)
class Preset:
    """
    A model size with defaults for training.

    Args:
        description (`str`): Text for `--help`.
        config (`dict[str, Any]`): Fields of the model's configuration.
        arguments (`dict[str, Any]`): Defaults of the script's options, such as `learning_rate`; none by default.
        subword_vocab_size (`int`): Default of `--vocab_size` for a trained subword tokenizer.
        backbone (`str`): `gpt2`, `tensorized` or `reformer`; for masked models `bert` or `modernbert`. Not used for
            translation models, which are Marian.
        recipe (`str`, *optional*): Default of `--recipe`; `None` for the script's.
        lambdas (`dict[str, float]`): The paper's λ by `ngram_target`; empty if it gives none.
    """

    description: str
    config: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    subword_vocab_size: int = 50_257
    backbone: str = "gpt2"
    recipe: str | None = None
    lambdas: dict[str, float] = field(default_factory=dict)
