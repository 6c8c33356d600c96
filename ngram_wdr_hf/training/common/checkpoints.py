"""Checkpoints that Trainer has saved: whether they are complete, intact, and of the model at hand."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedConfig, TrainerState

from ...data.errors import InputError
from ...evaluation.models import as_input_error
from ...method.configuration import NgramConfigMixin
from ...modeling.saved import check_fields_of_weights

# Trainer writes it last: it marks a checkpoint, and the training in a run's folder, as complete.
STATE = "trainer_state.json"


def read_state(folder: Path) -> TrainerState | None:
    """Return Trainer's state in this folder (a run's or a checkpoint's); `None` if it is missing or damaged."""
    fields = read_mapping(folder / STATE)
    try:
        state = TrainerState(**fields or {})
    except TypeError:
        return None
    is_whole = isinstance(state.global_step, int) and state.global_step > 0 and isinstance(state.log_history, list)
    return state if is_whole else None


def read_mapping(path: Path) -> dict[str, Any] | None:
    """Return the contents of a JSON file; `None` if it is missing, damaged, or no mapping."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return contents if isinstance(contents, dict) else None


def check_checkpoint(path: Path) -> None:
    """Raise an `InputError` if Trainer cannot resume from this checkpoint: missing, incomplete or damaged."""
    problem = "is missing or incomplete" if read_state(path) is None else damage_of(path)
    if problem is not None:
        raise InputError(
            f"Checkpoint {path} {problem}. Delete it to resume from the one before or from the start, or set "
            "`--resume_from_checkpoint` to another checkpoint."
        )


def damage_of(folder: Path) -> str | None:
    """Return what is wrong with the files of a saved model, as the end of a sentence; `None` if nothing is."""
    weights = sorted(folder.glob("*.safetensors"))
    if not (weights or any(folder.glob("pytorch_model*"))):
        return "has no weights"
    config = folder / "config.json"
    if config.exists() and read_mapping(config) is None:
        return f"is damaged ({config.name} is no JSON mapping)"
    try:
        for file in weights:
            # safetensors does not say that a file must not be read.
            with file.open("rb"), safe_open(file, framework="pt"):
                pass
    except PermissionError as error:
        return f"must not be read by this user ({Path(error.filename).name})"
    except (SafetensorError, OSError) as error:
        return f"is damaged ({' '.join(str(error).split())})"
    # torch saves zip files; a truncated one lacks the directory at its end.
    for pattern in ("*.pt", "*.pth", "*.bin"):
        for file in folder.glob(pattern):
            if not is_zipfile(file):
                return f"is damaged ({file.name} is truncated)"
    return None


def weights_digest(folder: Path) -> str | None:
    """Return a digest of the weights in a folder, which tells whether they have changed; `None` if it has none."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")])
    stats = [path.stat() for path in files]
    return _digest(*((path, stat.st_size, stat.st_mtime_ns) for path, stat in zip(files, stats, strict=True)))


# The runs of a command begin with the same weights.
@cache
def _digest(*files: tuple[Path, int, int]) -> str | None:
    total = hashlib.sha256()
    for path, _, _ in files:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:16] if files else None


def check_heads(config: PreTrainedConfig, checkpoint: Path) -> None:
    """Raise an `InputError` if the configuration gives the heads of the checkpoint another meaning."""
    if isinstance(config, NgramConfigMixin):
        with as_input_error():
            check_fields_of_weights(type(config), checkpoint, {"config": config})


def check_fits(model: nn.Module, checkpoint: Path) -> None:
    """Raise an `InputError` if the checkpoint is one of another model, by the names and shapes of its weights."""
    saved = {}
    for path in checkpoint.glob("model*.safetensors"):
        with safe_open(path, framework="pt") as file:
            saved.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
    if not saved:
        # Adapters, or shards: Trainer compares them itself.
        return
    weights = model.state_dict()
    # Tied weights are saved once, and computed ones, such as sinusoidal positions, not at all.
    present = {tensor.data_ptr() for name, tensor in weights.items() if name in saved}
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    strangers = [name for name in saved if name not in weights or saved[name] != tuple(weights[name].shape)]
    missing = [name for name, weight in trained.items() if weight.data_ptr() not in present]
    if strangers or missing:
        raise InputError(
            f"Checkpoint {checkpoint} is one of another model: `{(strangers + missing)[0]}` does not fit. Choose the "
            "options that it was trained with, or another checkpoint."
        )
