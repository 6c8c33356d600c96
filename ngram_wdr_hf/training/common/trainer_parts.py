"""What Trainer makes of its options when it starts, made once before that: integrations, optimizer, schedule."""

from importlib.util import find_spec

import torch
from accelerate.utils import DynamoBackend
from torch import nn
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks

from ...data.errors import InputError

# Optimizers that cannot be made without the model.
NEEDS_MODEL = ("adalomo", "apollo", "galore", "lomo")
ERRORS = (AssertionError, AttributeError, ImportError, KeyError, RuntimeError, TypeError, ValueError)


def check_trainer_parts(training: TrainingArguments) -> None:
    """Raise an `InputError` if Trainer would fail to make one of its parts, which it does after the preparations."""
    try:
        for callback in get_reporting_integration_callbacks(training.report_to):
            callback()
    except ERRORS as error:
        raise InputError(
            f"`--report_to` does not work: {_line(error)} Install the integration, or remove the option."
        ) from error
    if training.use_liger_kernel and find_spec("liger_kernel") is None:
        raise InputError("`--use_liger_kernel` needs the package liger-kernel: run `pip install liger-kernel`.")
    if training.torch_compile:
        backend, mode = training.torch_compile_backend, training.torch_compile_mode
        try:
            DynamoBackend(backend.upper())
            torch.compile(nn.Identity(), backend=backend, mode=mode)
        except ERRORS as error:
            raise InputError(
                f"`--torch_compile_backend {backend}` does not work with `--torch_compile_mode {mode}`: "
                f"{_line(error)} Correct or remove them."
            ) from error
    if training.optim.value.startswith(NEEDS_MODEL):
        return
    try:
        optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(training)
        optimizer = optimizer_class([nn.Parameter(torch.zeros(1))], **options)
    except ERRORS as error:
        raise InputError(
            f"`--optim {training.optim.value}` does not work with `--optim_args {training.optim_args}`: "
            f"{_line(error)} Correct or remove them."
        ) from error
    try:
        get_scheduler(
            training.lr_scheduler_type,
            optimizer,
            num_warmup_steps=1,
            num_training_steps=2,
            scheduler_specific_kwargs=training.lr_scheduler_kwargs,
        )
    except ERRORS as error:
        raise InputError(
            f"`--lr_scheduler_type {training.lr_scheduler_type.value}` does not work with `--lr_scheduler_kwargs "
            f"{training.lr_scheduler_kwargs}`: {_line(error)} Correct or remove them."
        ) from error


def _line(error: Exception) -> str:
    """Return the message of an error as one sentence."""
    return f"{' '.join(str(error).split()).removesuffix('.')}."
