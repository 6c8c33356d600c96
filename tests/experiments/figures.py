"""Records of runs with made-up figures."""

from pathlib import Path
from typing import Any

from runner.results import Results
from runner.tables import load_experiment


def record(
    system: str,
    seed: int,
    figures: dict[str, float],
    group: str = "ptb",
    name: tuple[str, str] = ("ptb", "small"),
    **fields: Any,
) -> dict[str, Any]:
    """
    Return the record of a run with these figures on the test and the validation set. `name` is that of the table and
    its scale, with the options of the run.
    """
    experiment = load_experiment(*name)
    run = experiment.run(group, experiment.without_heads.get(system, system), seed, Path(), Path())
    return {
        "group": group,
        "system": system,
        "seed": seed,
        "options": run.options,
        "source": run.source,
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


def ptb_results(scale: str = "small") -> Results:
    """
    Plain: 100, 102, 104. WDR with λ: 3, 4 and 5 less. Simple, if it is in the table at this scale: better or worse
    than plain, by seed.
    """
    grid = {"test": [[0.0, 101.0], [0.4, 99.0], [0.6, 120.0]], "validation": [[0.0, 1.0], [0.4, 0.5], [0.6, 2.0]]}
    fields = {"lambda": grid, "best_lambda": 0.4, "weights": [0.8, 0.2], "temperature_weight": 1.0}
    name, records = ("ptb", scale), []
    for seed, gain, change in ((1, 3.0, -1.0), (2, 4.0, 1.0), (3, 5.0, 0.5)):
        plain = 98.0 + 2 * seed
        diversity = [[0, 0.0, 9.0], [5, 1.0, 0.5 + seed / 100], [10, 2.0, 0.7 + seed / 100]]
        higher = [[step, epoch, value + 0.1] for step, epoch, value in diversity]
        figures = {"without heads": plain + 1, "best λ": plain - gain}
        records.append(record("plain", seed, {"without heads": plain}, name=name, head_parameters=0, minutes=None))
        records.append(record("wdr-4", seed, figures, name=name, gradient_diversity=higher, **fields))
        if "simple-4" in load_experiment(*name).systems:
            figures = {"without heads": plain + change}
            records.append(record("simple-4", seed, figures, name=name, gradient_diversity=diversity, **fields))
    return Results(*name, records)


def rows_of(text: str, title: str) -> dict[str, list[str]]:
    """Return the first table after a title by the label of its rows."""
    lines = [line for line in text.split(title, 1)[1].splitlines() if line]
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = cells[1:]
    return rows
