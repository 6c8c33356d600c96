"""Checks of option values. A bad value raises an `InputError` that names the option."""

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SchedulerType

from ...data.errors import InputError

# No count is larger. Greater integers overflow in torch and elsewhere.
LARGEST_INTEGER = 10**12


class Range(NamedTuple):
    """The finite numbers within bounds; `None` is no bound."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (abs(value) <= LARGEST_INTEGER if isinstance(value, int) else math.isfinite(value))
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = ("at least", "greater than", "at most", "less than")
        return " and ".join(f"{word} {bound}" for word, bound in zip(words, self, strict=True) if bound is not None)


NOT_NEGATIVE = Range(at_least=0)
POSITIVE = Range(above=0)
COUNT = Range(at_least=1)
FRACTION = Range(at_least=0, at_most=1)
SHARE = Range(above=0, at_most=1)
PERCENTAGE = Range(above=0, below=100)
# What numpy accepts.
SEED = Range(at_least=0, at_most=2**32 - 1)

# Trainer's numbers. It finds few of the bad ones itself, and most of these only after the training began.
TRAINER_NUMBERS = {
    "adam_beta1": Range(at_least=0, below=1),
    "adam_beta2": Range(at_least=0, below=1),
    "adam_epsilon": NOT_NEGATIVE,
    "data_seed": SEED,
    "dataloader_num_workers": NOT_NEGATIVE,
    "dataloader_prefetch_factor": COUNT,
    "ddp_bucket_cap_mb": COUNT,
    "ddp_timeout": COUNT,
    "eval_accumulation_steps": COUNT,
    "eval_delay": NOT_NEGATIVE,
    "eval_steps": POSITIVE,
    "gradient_accumulation_steps": COUNT,
    "learning_rate": POSITIVE,
    "logging_steps": POSITIVE,
    "max_grad_norm": NOT_NEGATIVE,
    "neftune_noise_alpha": NOT_NEGATIVE,
    "num_train_epochs": POSITIVE,
    "per_device_eval_batch_size": COUNT,
    "per_device_train_batch_size": COUNT,
    "save_steps": POSITIVE,
    "save_total_limit": NOT_NEGATIVE,
    "seed": SEED,
    "torch_empty_cache_steps": COUNT,
    "warmup_steps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
}
INTERVALS = [choice.value for choice in IntervalStrategy]
TRAINER_CHOICES = {
    "eval_strategy": INTERVALS,
    "logging_strategy": INTERVALS,
    "lr_scheduler_type": [choice.value for choice in SchedulerType],
    "save_strategy": [*INTERVALS, "best"],
}
# Options that are a JSON object; the first ones may also name a JSON file.
TRAINER_FILES = ("accelerator_config", "deepspeed", "fsdp_config")
TRAINER_OBJECTS = (*TRAINER_FILES, "gradient_checkpointing_kwargs", "lr_scheduler_kwargs")


def check_choice(name: str, value: str | None, choices: Sequence[str]) -> None:
    """Check that an option is one of its choices; `None` passes."""
    if value is not None and value not in choices:
        raise InputError(f"`--{name}` must be one of {', '.join(choices)}, got {value!r}.")


def check_number(name: str, value: float | None, allowed: Range) -> None:
    """Check that an option is a finite number within its range; `None` passes."""
    if value is not None and value not in allowed:
        expected = str(allowed)
        if isinstance(value, int) and value > LARGEST_INTEGER:
            expected = f"at most {LARGEST_INTEGER:,}"
        elif not math.isfinite(value):
            expected = "a finite number" + f", {allowed}" * (allowed != Range())
        raise InputError(f"`--{name}` must be {expected}, got {value}.")


def check_at_least(name: str, value: float | None, minimum: float) -> None:
    """Check that an option is not below its minimum; `None` passes."""
    check_number(name, value, Range(at_least=minimum))


def check_output_file(name: str, path: str | Path | None) -> None:
    """Check that the file of an option can be written; `None` passes."""
    if path is None:
        return
    path = Path(path)
    if path.is_dir():
        raise InputError(f"`--{name} {path}` is a folder. Choose a file.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"`--{name} {path}`: the folder does not exist. Create it, or choose another.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise InputError(f"`--{name} {path}` cannot be written. Change the permissions, or choose another file.")


def check_output_folder(name: str, path: str | Path) -> None:
    """Check that the folder of an option exists or can be made, and can be written to."""
    whole = Path(path).expanduser().absolute()
    existing = next(parent for parent in (whole, *whole.parents) if parent.exists())
    if not existing.is_dir():
        raise InputError(f"`--{name} {path}`: {existing} is a file. Choose a folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"`--{name} {path}` cannot be written. Change the permissions, or choose another folder.")


def check_trainer_options(training: TrainingArguments) -> None:
    """Check Trainer's own options before `TrainingArguments.__post_init__` reads them."""
    for name, allowed in TRAINER_NUMBERS.items():
        check_number(name, getattr(training, name), allowed)
    # Trainer's default of -1 leaves the length to `--num_train_epochs`.
    if training.max_steps != -1:
        check_at_least("max_steps", training.max_steps, 1)
    for name, choices in TRAINER_CHOICES.items():
        check_choice(name, getattr(training, name), choices)
    for name in TRAINER_OBJECTS:
        _check_object(name, getattr(training, name))


def _check_object(name: str, value: dict | str | None) -> None:
    """Check an option that is a JSON object, or the path of a JSON file."""
    if not isinstance(value, str):
        return
    is_file = name in TRAINER_FILES and not value.startswith("{")
    if is_file and not Path(value).is_file():
        raise InputError(f"`--{name}` must be a JSON object or a JSON file, but there is no file {value}.")
    try:
        is_object = isinstance(json.loads(Path(value).read_text(encoding="utf-8") if is_file else value), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise InputError(f'`--{name}` must be a JSON object such as {{"key": 1}}, got {value}.')
