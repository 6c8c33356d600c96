"""The options of a run taken together: which go with which, and which make it this run and no other."""

import copy
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import get_reporting_integration_callbacks

from ..data.errors import InputError
from .arguments import ClmArguments, ClmTrainingArguments
from .presets import CLM_PRESETS
from .run_folder import RunFolder

# Options that do not change what is learned: where and how it is computed, shown and kept.
NOT_SETTINGS = (
    "accelerator_config",
    "compare",
    "dataloader_num_workers",
    "dataloader_persistent_workers",
    "dataloader_pin_memory",
    "dataloader_prefetch_factor",
    "ddp_backend",
    "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters",
    "ddp_timeout",
    "deepspeed",
    "disable_tqdm",
    "do_train",
    "fsdp",
    "fsdp_config",
    "hub_model_id",
    "hub_private_repo",
    "hub_token",
    "lambda_grid",
    "log_level",
    "logging_first_step",
    "logging_steps",
    "logging_strategy",
    "num_workers",
    "output_dir",
    "per_device_eval_batch_size",
    "prompt",
    "push_to_hub",
    "report_to",
    "resume_from_checkpoint",
    "run_name",
    "sample_tokens",
    "save_total_limit",
    "use_cpu",
)
# Which text a run is about.
TEXT_OPTIONS = (
    "train_file",
    "validation_file",
    "test_file",
    "dataset_name",
    "dataset_config",
    "text_column",
    "streaming",
    "validation_percentage",
)
# What `--compare` calls the models, and the target that makes them.
MODELS = {"plain": "none", "simple": "simple", "wdr": "wdr"}


def check_together(arguments: ClmArguments) -> None:
    """What only shows when all options are there."""
    data, model, training = arguments.data, arguments.model, arguments.training
    if not training.do_train and model.model_name_or_path is None:
        raise InputError("`--do_train false` evaluates a trained model: say which with `--model_name_or_path`.")
    if data.streaming and training.do_train and training.max_steps <= 0:
        raise InputError("A streamed text has no known length: set `--max_steps`.")
    if training.n_gpu > 1:
        raise InputError(
            "Several GPUs need a process each: start with `accelerate launch` (see examples/accelerate), or show the "
            "script one GPU with CUDA_VISIBLE_DEVICES=0."
        )
    if data.streaming and training.do_train and training.eval_strategy == "epoch":
        raise InputError(
            "A streamed text may be too long for an epoch: set `--eval_strategy steps` and `--eval_steps`."
        )
    if arguments.report.compare:
        _check_comparable(arguments)
    if training.push_to_hub and not training.do_train:
        raise InputError("`--push_to_hub` pushes what was trained: leave out `--do_train false`.")
    if training.label_smoothing_factor:
        raise InputError(
            "Trainer's `--label_smoothing_factor` takes the labels away from the heads: use `--label_smoothing`."
        )
    if model.train_mode == "lora" and (training.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true"):
        raise InputError("Adapters cannot be merged from FSDP's shards: use `--train_mode lora` without FSDP.")
    try:
        for callback in get_reporting_integration_callbacks(training.report_to):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(f"`--report_to` cannot be used: {error}") from error


def _check_comparable(arguments: ClmArguments) -> None:
    model = arguments.model
    if not arguments.training.do_train:
        raise InputError("`--compare` trains models: leave out `--do_train false`.")
    if model.train_mode == "heads":
        raise InputError("`--compare` trains a model without heads, too: leave out `--train_mode heads`.")
    if model.model_name_or_path and RunFolder(model.model_name_or_path).has_heads():
        raise InputError("`--compare` gives heads of each kind to a plain model: this one has heads already.")


def with_text_of_run(arguments: ClmArguments) -> ClmArguments:
    """Evaluation of a run without a word about the text: the text that it was trained and evaluated on."""
    data = arguments.data
    if data.dataset_name or data.train_file or data.validation_file or data.test_file:
        return arguments
    settings = RunFolder(arguments.model.model_name_or_path).settings()
    text = {name: settings[name] for name in TEXT_OPTIONS if name in settings}
    return replace(arguments, data=replace(data, **text))


def others(arguments: ClmArguments) -> list[ClmArguments]:
    """The same run for the other kinds of model, each in a folder of its own inside the run's."""
    own = "none" if arguments.model.ngram_size == 1 else arguments.model.ngram_target or "wdr"
    ngram_size = None if arguments.model.ngram_size == 1 else arguments.model.ngram_size
    runs = []
    for name, target in MODELS.items():
        if target != own:
            # `TrainingArguments` is not made to be made twice.
            training = copy.copy(arguments.training)
            training.output_dir = str(Path(arguments.training.output_dir) / name)
            data = replace(arguments.data, tokenizer=arguments.training.output_dir)
            model = replace(arguments.model, ngram_target=target, ngram_size=None if target == "none" else ngram_size)
            runs.append(replace(arguments, data=data, model=model, training=training))
    return runs


def run_settings(arguments: ClmArguments) -> dict[str, Any]:
    """What makes a run this run and no other, as options that can be given again."""
    options = {**asdict(arguments.data), **asdict(arguments.model), **asdict(arguments.report)}
    defaults = ClmTrainingArguments(arguments.training.output_dir).to_dict()
    # What the preset has an opinion about is always said: Trainer's default is not the preset's.
    named = {"seed", "learning_rate"}
    if arguments.model.preset is not None:
        named |= CLM_PRESETS[arguments.model.preset].arguments.keys()
    for name, value in arguments.training.to_dict().items():
        if name in named or value != defaults[name]:
            options[name] = value
    return {name: value for name, value in options.items() if value is not None and name not in NOT_SETTINGS}


def check_prompt(prompt: str | None, tokenizer: PreTrainedTokenizerBase) -> None:
    if prompt is not None and not tokenizer(prompt, add_special_tokens=False).input_ids:
        raise InputError(f"`--prompt {prompt!r}` has no token to begin with: give it a word.")


def find_block_size(model: PreTrainedModel, asked: int | None) -> int:
    """How many tokens the model reads at a time: what was asked for, or as many as it can."""
    longest = model.config.max_position_embeddings
    if asked is not None and asked > longest:
        raise InputError(f"`--block_size {asked}` is more than the model can see: at most {longest}.")
    block_size = asked or longest
    if block_size <= model.config.ngram_size:
        raise InputError(
            f"N = {model.config.ngram_size} needs blocks of more than {model.config.ngram_size} tokens: raise "
            f"`--block_size`, which is {block_size}."
        )
    return block_size
