"""Dataclass fields of options whose help texts depend on the script."""

from typing import Any

from transformers.hf_argparser import HfArg

from .presets import DEFAULT_PRESET, Preset
from .recipes import ENSEMBLES, RECIPES


def recipe_field(default: str, has_ensemble: bool = True) -> Any:
    """Return the dataclass field of the option `--recipe`, for a script with this default."""
    listed = {name: recipe.description for name, recipe in RECIPES.items()}
    if has_ensemble:
        for name, recipe in RECIPES.items():
            listed[name] += f"; the ensemble has {ENSEMBLES[recipe.ensemble]}"
    return HfArg(
        default=None,
        help=f"Defaults for the options of the heads' training{' and of the ensemble' if has_ensemble else ''}. "
        f"{' '.join(f'`{name}`: {text}.' for name, text in listed.items())} Default: the preset's, else `{default}`; "
        "the heads of a checkpoint keep theirs.",
    )


def overrides_help(example: str) -> str:
    """Return the help on the option `--config_overrides`, with an example for the script's models."""
    return f"Fields of a new model's configuration that replace the preset's, such as `{example}`."


def compare_field(others: str) -> Any:
    """Return the dataclass field of the option `--compare`. `others` names the other kinds of model."""
    return HfArg(
        default=False,
        help=f"Also train the other kinds of model ({others}) with the same settings, each in a subfolder of "
        "`--output_dir`, and compare the results.",
    )


def best_metric_field(default: str) -> Any:
    """Return the dataclass field of the option `--metric_for_best_model`. `default` describes the default."""
    return HfArg(
        default=None,
        help="Metric that selects the best checkpoint, such as `loss`, `perplexity` or `heads_loss`; an unknown name "
        f"lists all. Default: {default}; with `--train_mode heads`, the loss of the heads.",
    )


def output_dir_field(default: str) -> Any:
    """Return the dataclass field of the option `--output_dir`, with this default."""
    return HfArg(
        default=default,
        help="Folder of the run, new, empty, or of a run with the same settings. Repeat the command to resume an "
        "interrupted run, or with a greater `--max_steps` or `--num_train_epochs` to train a finished one further. "
        "With `--do_train false`, the folder of evaluation.md and evaluation.json; by default, the model's.",
    )


def preset_field(presets: dict[str, Preset]) -> Any:
    """Return the dataclass field of the option `--preset`. The default is `None`; the help text lists the presets."""
    listed = "; ".join(f"`{name}`: {preset.description}" for name, preset in presets.items())
    return HfArg(
        default=None,
        help=f"Size of a new model and defaults of its training. {listed}. Default: `{DEFAULT_PRESET}`; with "
        "`--model_name_or_path`, none.",
    )
