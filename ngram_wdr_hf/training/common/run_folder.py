"""The folder of a run: which run it holds, and where an interrupted one resumes."""

import json
import re
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import yaml
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedTokenizerBase

from ...data.errors import InputError

SETTINGS = "run.yaml"


class RunFolder:
    """Holds one run, with its settings in `run.yaml`, and refuses any other."""

    def __init__(self, path: str):
        self.path = Path(path)

    def check(self, settings: dict[str, Any]) -> None:
        """Check that the folder is empty or holds a run with the same settings."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose another `--output_dir`.")
        if not (self.path / SETTINGS).exists():
            if self.path.exists() and any(not _is_left_over(child) for child in self.path.iterdir()):
                raise InputError(f"The folder {self.path} holds something else: choose another `--output_dir`.")
            return
        there, settings = self.settings(), yaml.safe_load(_as_yaml(settings))
        names = [name for name in {**there, **settings} if there.get(name) != settings.get(name)]
        if names:
            differences = "; ".join(
                f"{name}: {there.get(name)} there, {settings.get(name)} here" for name in names[:3]
            )
            raise InputError(
                f"The folder {self.path} holds a run with other settings ({differences}): choose another "
                "`--output_dir`, or delete the folder."
            )

    def settings(self) -> dict[str, Any]:
        """The settings of the run in the folder; empty if there is none."""
        path = self.path / SETTINGS
        try:
            settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        except yaml.YAMLError:
            settings = None
        if not isinstance(settings, dict):
            raise InputError(f"The file {path} is damaged: choose another `--output_dir`, or delete the folder.")
        return settings

    def claim(self, settings: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the settings and the tokenizer of a new run."""
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / SETTINGS).exists():
            return
        tokenizer.save_pretrained(self.path)
        # Renamed once complete: a run may be stopped at any time, and this file marks its beginning.
        unfinished = self.path / f".{SETTINGS}"
        unfinished.write_text(_as_yaml(settings), encoding="utf-8")
        unfinished.replace(self.path / SETTINGS)

    def has_heads(self) -> bool:
        """Whether the folder holds a checkpoint of this package."""
        path = self.path / "config.json"
        return path.is_file() and "ngram_size" in json.loads(path.read_text(encoding="utf-8"))

    def is_trained(self) -> bool:
        """Whether the training is complete: Trainer's state is written last."""
        return _is_complete(self.path)

    def history(self) -> list[dict[str, float]]:
        """Trainer's log of the completed training."""
        return json.loads((self.path / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]

    def last_checkpoint(self) -> str | None:
        """The last complete checkpoint; `None` if there is none."""
        checkpoints = [path for path in self.path.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
        complete = [path for path in checkpoints if _is_complete(path)]
        if not complete:
            return None
        last = max(complete, key=lambda path: int(path.name.split("-")[1]))
        check_checkpoint(last)
        return str(last)


def _is_left_over(path: Path) -> bool:
    """Whether a run that was stopped while claiming the folder may have left this file."""
    return path.name.startswith((".", "tokenizer", "special_tokens_map", "vocab", "source.spm", "target.spm"))


def result_of(checkpoint: Path, patience: int | None, keeps_best: bool) -> Path | None:
    """
    The checkpoint with the result, if this last checkpoint of a run ends its training: after the last step, or when
    early stopping ended it. `None` if training has to resume.
    """
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    stopping = state["stateful_callbacks"].get("EarlyStoppingCallback", {}).get("attributes", {})
    is_stopped = patience is not None and stopping.get("early_stopping_patience_counter", 0) >= patience
    if not is_stopped and state["global_step"] < state["max_steps"]:
        return None
    best = state["best_model_checkpoint"] if keeps_best else None
    return checkpoint.with_name(Path(best).name) if best else checkpoint


def _as_yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def _is_complete(folder: Path) -> bool:
    """Trainer writes its state last: without a readable one, the run was stopped while writing."""
    try:
        json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def check_checkpoint(path: Path) -> None:
    """Check that Trainer can resume from this checkpoint."""
    remedy = "delete it, and the run goes on from the one before, or begins again"
    if not _is_complete(path):
        raise InputError(f"The checkpoint {path} is not there or not complete: {remedy}.")
    weights = sorted(path.glob("*.safetensors"))
    if not (weights or any(path.glob("pytorch_model*"))):
        raise InputError(f"The checkpoint {path} lacks its weights: {remedy}.")
    reason = None
    try:
        for file in weights:
            with safe_open(file, framework="pt"):
                pass
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())
    # torch saves zip files, whose directory comes last: a truncated file is not a zip file.
    cut_off = [
        file.name for pattern in ("*.pt", "*.pth", "*.bin") for file in path.glob(pattern) if not is_zipfile(file)
    ]
    if reason or cut_off:
        raise InputError(f"The checkpoint {path} is damaged ({reason or cut_off[0] + ' is cut off'}): {remedy}.")
