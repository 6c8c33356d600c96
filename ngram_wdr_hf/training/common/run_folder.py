"""The folder of a run: its settings, its state, and the checkpoint to resume from."""

import re
import shutil
from pathlib import Path
from typing import Any

import yaml
from transformers import PreTrainedTokenizerBase, TrainerState

from ...data.errors import InputError
from .checkpoints import STATE, check_checkpoint, damage_of, read_mapping, read_state

SETTINGS = "run.yaml"
METRICS, TRANSLATIONS = "metrics.json", "test_translations.jsonl"
# The name of the files of an evaluation without training.
EVALUATION = "evaluation"
# Files with the results of a training, which are not those of a longer one.
RESULTS = (
    METRICS,
    f"{EVALUATION}.*",
    "README.md",
    TRANSLATIONS,
    "lambda_sweep.png",
    "training.png",
    "gradient_diversity.png",
    "comparison*.png",
)
# Folders of the text that a model wrote, and of its hidden states.
SELF_GENERATED, HIDDEN_STATES = "self_generated", "hidden_states"
# The name of Trainer's checkpoints.
CHECKPOINT = re.compile(r"checkpoint-\d+")
# The setting that is no option: a digest of the weights in the folder of `--model_name_or_path`.
MODEL_WEIGHTS = "model_weights"
# Settings that may change when a run is continued.
LENGTHS = ("max_steps", "num_train_epochs")


class RunFolder:
    """The folder of one run: settings (`run.yaml`), tokenizer, checkpoints, model and Trainer's log."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def check(self, settings: dict[str, Any]) -> None:
        """
        Raise an `InputError` unless the folder is new, empty, or holds a run with the same settings. The length of its
        training (steps or epochs) may differ.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"`--output_dir {self.path}` is a file: choose a folder.")
        if not self.has_begun():
            if self.path.exists() and any(not _is_left_over(child) for child in self.path.iterdir()):
                raise InputError(
                    f"`--output_dir {self.path}` has files, but no run of these scripts: choose an empty folder."
                )
            return
        saved, settings = self.settings(), yaml.safe_load(_as_yaml(settings))
        names = [name for name in self._differences(settings) if name not in LENGTHS]
        if names == [MODEL_WEIGHTS]:
            raise InputError(
                f"`--output_dir {self.path}` holds a run that began with other weights: those of "
                f"`--model_name_or_path {settings['model_name_or_path']}` have changed since. Choose another folder, "
                "or delete this one."
            )
        if names:
            differences = "; ".join(f"{name}: saved {saved.get(name)}, now {settings.get(name)}" for name in names[:3])
            raise InputError(
                f"`--output_dir {self.path}` holds a run with other settings ({differences}). Choose another folder, "
                "or delete this one."
            )

    def has_begun(self) -> bool:
        """Return whether the folder holds a run: its settings, which are written after its tokenizer."""
        return (self.path / SETTINGS).exists()

    def settings(self) -> dict[str, Any]:
        """Return the settings in `run.yaml`; empty if there is no such file, an `InputError` if it is damaged."""
        path = self.path / SETTINGS
        try:
            settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (yaml.YAMLError, UnicodeDecodeError):
            settings = None
        if not isinstance(settings, dict):
            raise InputError(
                f"The folder {self.path} has a damaged settings file, {path}: choose another folder, or delete this "
                "one."
            )
        return settings

    def has_length_of(self, settings: dict[str, Any]) -> bool:
        """Return whether the run in the folder has the same length (steps or epochs) as these settings."""
        return not any(name in LENGTHS for name in self._differences(settings))

    def _differences(self, settings: dict[str, Any]) -> list[str]:
        """Return the names of the settings in which `run.yaml` and `settings` differ, those in only one included."""
        saved, settings = self.settings(), yaml.safe_load(_as_yaml(settings))
        if not (saved.keys() & settings.keys() & {MODEL_WEIGHTS}):
            # Older runs do not have it, nor those of a model on the Hub.
            saved, settings = ({**each, MODEL_WEIGHTS: None} for each in (saved, settings))
        return [name for name in {**saved, **settings} if saved.get(name) != settings.get(name)]

    def claim(self, settings: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the settings and the tokenizer of a new run. Do nothing if the folder has settings already."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.has_begun():
            tokenizer.save_pretrained(self.path)
            self.save_settings(settings)

    def save_settings(self, settings: dict[str, Any]) -> None:
        """Write the settings to `run.yaml`, replacing those in it."""
        # Renamed when complete, so that an interrupted write leaves no damaged file.
        unfinished = self.path / f".{SETTINGS}"
        unfinished.write_text(_as_yaml(settings), encoding="utf-8")
        unfinished.replace(self.path / SETTINGS)

    def reopen(self, settings: dict[str, Any]) -> None:
        """
        Mark the training in the folder as incomplete, remove its results, and write its new settings, before it begins
        or continues.
        """
        (self.path / STATE).unlink(missing_ok=True)
        for pattern in RESULTS:
            for path in self.path.glob(pattern):
                path.unlink()
        self.save_settings(settings)

    def has_heads(self) -> bool:
        """Return whether `config.json` has the field `ngram_size`, as in a checkpoint of a class with N-gram heads."""
        return "ngram_size" in (read_mapping(self.path / "config.json") or {})

    def is_trained(self) -> bool:
        """Return whether the folder holds a completed training and its model."""
        return self.trained_state() is not None

    def trained_state(self) -> TrainerState | None:
        """Return Trainer's state at the end of a completed training; `None` without one, or without its model."""
        return read_state(self.path) if self.damage() is None else None

    def damage(self) -> str | None:
        """Return what is wrong with the model of a completed training, ending a sentence; `None` if nothing is."""
        if read_state(self.path) is None:
            return None
        return damage_of(self.path) if (self.path / "config.json").exists() else "has no config.json"

    def remove_damaged_config(self) -> None:
        """Remove a `config.json` that cannot be read, as the tokenizer would read it; the training writes it again."""
        config = self.path / "config.json"
        if config.exists() and read_mapping(config) is None:
            config.unlink()

    def history(self) -> list[dict[str, float]]:
        """Return Trainer's `log_history` of the completed training: a dictionary per log entry."""
        return read_state(self.path).log_history

    def last_checkpoint(self) -> Path | None:
        """
        Return the path of the complete checkpoint with the most steps; `None` if there is none. Raise an `InputError`
        if its weights are missing or damaged.
        """
        complete = [path for path in self._checkpoints() if read_state(path) is not None]
        if not complete:
            return None
        check_checkpoint(complete[-1])
        return complete[-1]

    def remove_incomplete(self) -> None:
        """Remove checkpoints that were not written to their end."""
        for path in self._checkpoints():
            if read_state(path) is None:
                shutil.rmtree(path, ignore_errors=True)

    def _checkpoints(self) -> list[Path]:
        """Return the paths of all checkpoints, the one with the most steps last."""
        paths = [path for path in self.path.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)]
        return sorted(paths, key=lambda path: int(path.name.split("-")[1]))


def run_of(model: str) -> RunFolder:
    """Return the folder of a saved model's run: the model's own, or for a checkpoint of Trainer's, the one above."""
    path = Path(model)
    is_checkpoint = CHECKPOINT.fullmatch(path.name) and not (path / SETTINGS).exists()
    return RunFolder(path.parent if is_checkpoint else path)


def _is_left_over(path: Path) -> bool:
    """
    Return whether a file may be there before `run.yaml`: hidden, a tokenizer's, an evaluation's, or text that the
    model began to write.
    """
    return path.name.startswith(
        (".", f"{EVALUATION}.", SELF_GENERATED, "tokenizer", "special_tokens_map", "vocab", "source.spm", "target.spm")
    )


def _as_yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
