"""The folder of a run: whose it is, and where an interrupted run goes on."""

import json
import re
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import yaml
from safetensors import SafetensorError, safe_open

from ..data.errors import InputError

SETTINGS = "run.yaml"


class RunFolder:
    """Holds one run, whose settings stand in `run.yaml`, and refuses any other."""

    def __init__(self, path: str):
        self.path = Path(path)

    def check(self, settings: dict[str, Any]) -> None:
        """An error if the folder is not free for a run with these settings, nor already its own."""
        if not (self.path / SETTINGS).exists():
            if self.path.exists() and any(not child.name.startswith(".") for child in self.path.iterdir()):
                raise InputError(f"The folder {self.path} holds something else: choose another `--output_dir`.")
            return
        try:
            there = yaml.safe_load((self.path / SETTINGS).read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise InputError(f"The file {self.path / SETTINGS} is damaged: choose another `--output_dir`.") from error
        settings = yaml.safe_load(_as_yaml(settings))
        names = [name for name in {**there, **settings} if there.get(name) != settings.get(name)]
        if names:
            differences = "; ".join(
                f"{name}: {there.get(name)} there, {settings.get(name)} here" for name in names[:3]
            )
            raise InputError(
                f"The folder {self.path} holds a run with other settings ({differences}): choose another "
                "`--output_dir`, or delete the folder."
            )

    def claim(self, settings: dict[str, Any]) -> None:
        """Makes the folder that of a run with these settings."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / SETTINGS).write_text(_as_yaml(settings), encoding="utf-8")

    def is_trained(self) -> bool:
        """Whether the training was completed: Trainer's state is written last."""
        return (self.path / "trainer_state.json").exists()

    def history(self) -> list[dict[str, float]]:
        """Trainer's log of the completed training."""
        return json.loads((self.path / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]

    def last_checkpoint(self) -> str | None:
        """The last checkpoint that was written to its end; `None` if there is none."""
        checkpoints = [path for path in self.path.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
        # Trainer writes its state last: without it, the run was stopped while writing.
        complete = [path for path in checkpoints if (path / "trainer_state.json").exists()]
        if not complete:
            return None
        last = max(complete, key=lambda path: int(path.name.split("-")[1]))
        check_checkpoint(last)
        return str(last)


def _as_yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


def check_checkpoint(path: Path) -> None:
    """An error if Trainer could not go on from this checkpoint."""
    remedy = "delete it, and the run goes on from the one before, or begins again"
    if not (path / "trainer_state.json").is_file():
        raise InputError(f"The checkpoint {path} is not there or not complete: {remedy}.")
    weights = sorted(path.glob("*.safetensors"))
    if not (weights or any(path.glob("pytorch_model*"))):
        raise InputError(f"The checkpoint {path} lacks its weights: {remedy}.")
    reason = None
    try:
        json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
        for file in weights:
            with safe_open(file, framework="pt"):
                pass
    except (SafetensorError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
    # What torch saves is a zip file, whose directory comes last: one that was cut off is none.
    cut_off = [file.name for pattern in ("*.pt", "*.pth") for file in path.glob(pattern) if not is_zipfile(file)]
    if reason or cut_off:
        raise InputError(f"The checkpoint {path} is damaged ({reason or cut_off[0] + ' is cut off'}): {remedy}.")
