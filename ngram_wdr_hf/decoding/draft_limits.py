"""What speculative decoding cannot be used with, and how far the positions of a model reach."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import torch.distributed as dist
from transformers import PreTrainedConfig, generation
from transformers.generation import GenerationConfig, GenerationMode, LogitsProcessorList
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from ..compat import is_checkpointing

OTHER_DECODING = {"assistant_model", "assistant_early_exit", "assistant_ensemble_weight", "custom_generate"}
# Processors whose state cannot undo a rejected draft, or whose constraint may not know one.
UNFIT_PROCESSORS = (
    generation.PrefixConstrainedLogitsProcessor,
    generation.SynthIDTextWatermarkLogitsProcessor,
    generation.UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
# Rotary positions whose frequencies change for the whole text when it exceeds a length.
CHANGING_ROPE = ("dynamic", "longrope")


class CannotDraft(ValueError):
    """`use_mtp=True` cannot be used with this model, or with another option of the same call of `generate`."""


def refuse(what: str, remedy: str) -> NoReturn:
    raise CannotDraft(f"`use_mtp=True` cannot be used with {what}: {remedy}, or set `use_mtp=False`.")


def check_model(model, options: Mapping[str, Any]) -> None:
    """Raise `CannotDraft` if a model, or a call of `generate` with these options, cannot draft."""
    if model.config.ngram_size == 1:
        refuse("a model without N-gram heads (`ngram_size=1`)", "use one with `ngram_size` >= 2")
    for name in OTHER_DECODING & options.keys():
        refuse(f"`{name}`, another way to decode", "remove one of them")
    if options.get("num_beams", 1) > 1:
        refuse("beam search", "set `num_beams=1`")
    if options.get("cache_implementation") == "paged":
        refuse("a paged cache", "choose another cache")
    is_sharded = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
    if options.get("synced_gpus", is_sharded and dist.is_initialized() and dist.get_world_size() > 1):
        refuse("weights that are sharded outside of the forward", "gather the model on each device first")
    if model._is_stateful:
        refuse(f"a {type(model).__name__}, whose state cannot undo rejected drafts", "choose another model")


def check_call(model, config: GenerationConfig, processors: LogitsProcessorList, num_rows: int) -> None:
    """Raise `CannotDraft` if a call of `generate`, as Transformers has prepared it, cannot draft."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        refuse(mode.value.replace("_", " "), "use greedy search or sampling")
    for processor in processors:
        if isinstance(processor, UNFIT_PROCESSORS):
            refuse(f"a {type(processor).__name__}", "remove it")
    for option in ("output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, option):
            refuse(f"`{option}=True`", "remove it")
    if model.training and is_checkpointing(model):
        refuse("gradient checkpointing, which has no cache in training mode", "call `model.eval()` first")
    if getattr(model.prepare_inputs_for_generation, "__self__", None) is not model:
        refuse("a wrapper that reads one token at a time, such as prompt tuning", "use the model itself")
    if num_rows > 1 and not model.ngram_rows_can_move:
        refuse(
            f"a batch of a {type(model).__name__}, whose rows share their positions", "generate the rows one by one"
        )


def max_positions(config: PreTrainedConfig) -> int | None:
    """Return the longest text that a model with this configuration reads, in tokens; `None` if there is no limit."""
    try:
        return getattr(config, "max_position_embeddings", None)
    except NotImplementedError:  # what some configurations do instead of having no attribute
        return None


def table_size(config: PreTrainedConfig) -> float:
    """Return the number of positions that the model has a table of; infinity if it needs none."""
    limit = None if getattr(config, "rope_parameters", None) else max_positions(config)
    return math.inf if limit is None else limit


def check_rope(config: PreTrainedConfig, num_rows: int, prompt_length: int, max_length: int) -> None:
    """Raise `CannotDraft` if all rotary positions can change while the prompts grow to `max_length` tokens."""
    parameters = getattr(config, "rope_parameters", None) or {}
    # Some models have parameters for each type of layer.
    for rope in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        if rope.get("rope_type") in CHANGING_ROPE:
            limit = rope.get("original_max_position_embeddings") or max_positions(config)
            # "longrope" changes only once. But in a batch, it depends on the rows that are not finished yet.
            is_past = rope["rope_type"] == "longrope" and num_rows == 1 and prompt_length > (limit or 0)
            if limit is not None and max_length > limit and not is_past:
                what = f"{max_length} tokens: beyond {limit}, `rope_type={rope['rope_type']!r}` changes positions"
                refuse(what, "reduce `max_new_tokens`")
