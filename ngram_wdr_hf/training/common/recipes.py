"""Recipes: how heads are trained beside the model, and which ensemble is saved with it."""

from dataclasses import dataclass
from typing import Any

DEFAULT_RECIPE = "free"
ENSEMBLES = ("fitted", "lambda")


@dataclass(frozen=True)
class Recipe:
    """
    Defaults for the options of the heads.

    Args:
        description (`str`): Text for `--help`.
        fields (`dict[str, Any]`): Fields of the model's configuration.
        ensemble (`str`): `"fitted"` weights, or `"lambda"`, the best λ of a grid.
    """

    description: str
    fields: dict[str, Any]
    ensemble: str


RECIPES = {
    "free": Recipe(
        "the heads do not change the model's training (γ = 0), and the ensemble has fitted weights",
        {"head_gradient": 0.0, "head_loss_weight": 1.0, "head_loss_decay": 1.0, "head_sample_rate": 1.0},
        ensemble="fitted",
    ),
    "paper": Recipe(
        "half of the loss goes to the heads, which change the model (γ = 1), and the ensemble has a λ",
        {"head_gradient": 1.0, "head_loss_weight": None, "head_loss_decay": 1.0, "head_sample_rate": 1.0},
        ensemble="lambda",
    ),
}
