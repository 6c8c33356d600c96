"""Named settings: the sizes of a model, and how such a model is trained unless the command says otherwise."""

from dataclasses import dataclass, field
from typing import Any

DEFAULT_PRESET = "tiny"


@dataclass(frozen=True)
class Preset:
    """
    Args:
        description (`str`): One line for `--help`.
        config (`dict[str, Any]`): Fields of the model's configuration.
        arguments (`dict[str, Any]`): Defaults for the command's options.
        subword_vocab_size (`int`): The size of a tokenizer of subwords that suits the model.
        backbone (`str`): `gpt2`, `tensorized` or `reformer`; of a masked language model, `bert` or `modernbert`.
        lambdas (`dict[str, float]`): The λ that the paper gives for each kind of heads, if it does.
    """

    description: str
    config: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    subword_vocab_size: int = 50_257
    backbone: str = "gpt2"
    lambdas: dict[str, float] = field(default_factory=dict)
