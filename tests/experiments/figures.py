"""Records of runs with made-up figures."""

from typing import Any


def record(system: str, seed: int, figures: dict[str, float], group: str = "ptb", **fields: Any) -> dict[str, Any]:
    """Return the record of a run with these figures on the test and the validation set."""
    return {
        "group": group,
        "system": system,
        "seed": seed,
        "options": {},
        "model": system,
        "parameters": 1100,
        "head_parameters": 100,
        "minutes": 2.0,
        "validation_perplexity": 100.0,
        "lowest_validation_perplexity": None,
        "weights": None,
        "temperature_weight": None,
        "best_lambda": None,
        "lambda": {},
        "figures": {"validation": figures, "test": figures},
        "gradient_diversity": [],
        **fields,
    }


def metrics(**fields: Any) -> dict[str, Any]:
    """Return the contents of metrics.json of a language model with heads."""
    ensembles = {"without heads": 100.0, "temperature": 99.0, "best λ": 95.0, "fitted": 90.0}
    split = {
        "lambda": [0.0, 0.2, 0.4],
        "perplexity": [100.0, 95.0, 97.0],
        "ensembles": {name: {"perplexity": figure, "token_perplexity": 99.5} for name, figure in ensembles.items()},
    }
    return {
        "model": "wdr N=4",
        "fit": {"weights": [0.8, 0.2, 0.1, 0.0], "temperature_weight": 1.1},
        "num_parameters": 1100,
        "head_parameters": 100,
        "splits": {"validation": split, "test": {**split, "perplexity": [110.0, 106.0, 105.0]}},
        "settings": {"recipe": "free", "learning_rate": 0.001, "seed": 1},
        "history": [
            {"step": 0, "epoch": 0, "gradient_diversity": 0.1},
            {"step": 5, "epoch": 1.0, "gradient_diversity": None},
            {"step": 5, "epoch": 1.0, "eval_perplexity": 98.0},
            {"step": 10, "epoch": 2.0, "eval_perplexity": 100.0},
            {"step": 10, "epoch": 2.0, "train_runtime": 90.0},
        ],
        **fields,
    }
