"""Options for training text that a model writes itself, of language models."""

from typing import Any

from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from .arguments import RunArguments, uses_fsdp
from .checks import check_at_least

OWN_TEXT_BATCH_SIZE = 32


def temperature_field(default: float) -> Any:
    """Return the dataclass field of the option `--self_generated_temperature`, for a script with this default."""
    return HfArg(
        default=None,
        help=f"Temperature of sampling for `--self_generated`; 0 is greedy search. Default: {default:g}.",
    )


def batch_size_field() -> Any:
    """Return the dataclass field of the option `--self_generated_batch_size`."""
    return HfArg(
        default=None,
        help="Number of rows that are written at the same time for `--self_generated`. Default: "
        f"{OWN_TEXT_BATCH_SIZE}.",
    )


def check_own_text(data: Any) -> None:
    """Raise an `InputError` for bad values of `--self_generated` and its options, or for these without it."""
    check_at_least("self_generated", data.self_generated, 1)
    check_at_least("self_generated_temperature", data.self_generated_temperature, 0)
    check_at_least("self_generated_batch_size", data.self_generated_batch_size, 1)
    for name in ("self_generated_temperature", "self_generated_batch_size"):
        if getattr(data, name) is not None and data.self_generated is None:
            raise InputError(f"`--{name}` needs `--self_generated`: say how much the model is to write.")


def check_not_sharded(arguments: RunArguments) -> None:
    """Raise an `InputError` for options that run the whole model before the training, together with FSDP."""
    if not uses_fsdp(arguments.training):
        return
    options = {
        "self_generated": arguments.data.self_generated is not None,
        "cache_hidden_states": arguments.model.cache_hidden_states,
    }
    for name, is_given in options.items():
        if is_given:
            raise InputError(
                f"`--{name}` does not work with FSDP, which loads the weights in one process only: train without FSDP."
            )
