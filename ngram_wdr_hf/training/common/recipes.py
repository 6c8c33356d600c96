"""Recipes: how heads are trained beside the model, and which ensemble is saved with it."""

from dataclasses import dataclass
from typing import Any

ENSEMBLES = {"fitted": "fitted weights", "lambda": "a λ"}


@dataclass(frozen=True)
class Recipe:
    """
    Defaults for the options of the heads.

    Args:
        description (`str`): Text for `--help`.
        fields (`dict[str, Any]`): Fields of the model's configuration.
        new_heads (`dict[str, Any]`): Further fields for new heads, which those of a checkpoint cannot change.
        ensemble (`str`): A key of `ENSEMBLES`: `"fitted"` weights, or `"lambda"`, the best λ of a grid.
    """

    description: str
    fields: dict[str, Any]
    new_heads: dict[str, Any]
    ensemble: str


RECIPES = {
    "free": Recipe(
        "the heads also read the tokens in between, are trained on a third of the positions in each step, and do not "
        "change the model's training (γ = 0)",
        {"head_gradient": 0.0, "head_loss_weight": 1.0, "head_loss_decay": 1.0, "head_sample_rate": 1 / 3},
        {"ngram_head_reads": "hidden+tokens"},
        ensemble="fitted",
    ),
    "paper": Recipe(
        "half of the loss goes to the heads, which change the model (γ = 1)",
        {"head_gradient": 1.0, "head_loss_weight": None, "head_loss_decay": 1.0, "head_sample_rate": 1.0},
        {"ngram_head_reads": "hidden"},
        ensemble="lambda",
    ),
}
