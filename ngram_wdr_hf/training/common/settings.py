"""The options of a run taken together: which go with which, and which make it this run and no other."""

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers.integrations import get_reporting_integration_callbacks

from ...data.errors import InputError
from .arguments import RunArguments, check_choice, uses_fsdp
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
    "gradient_diversity_steps",
    "hub_model_id",
    "hub_private_repo",
    "hub_token",
    "lambda_grid",
    "length_penalty",
    "log_level",
    "logging_first_step",
    "logging_steps",
    "logging_strategy",
    "num_beams",
    "num_examples",
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
    "translate",
    "translate_to",
    "use_cpu",
    "use_mtp",
)


def check_together(arguments: RunArguments) -> None:
    """What only shows when all options are there."""
    model, training = arguments.model, arguments.training
    if not training.do_train and model.model_name_or_path is None:
        raise InputError("`--do_train false` evaluates a trained model: say which with `--model_name_or_path`.")
    if training.n_gpu > 1:
        raise InputError(
            "Several GPUs need a process each: start with `accelerate launch` (see examples/accelerate), or show the "
            "script one GPU with CUDA_VISIBLE_DEVICES=0."
        )
    if arguments.report.compare:
        _check_comparable(arguments)
    elif arguments.report.use_mtp and model.kind not in ("simple", "wdr"):
        raise InputError("`--use_mtp` drafts with the heads, and this model has none: choose another `--ngram_size`.")
    if training.push_to_hub and not training.do_train:
        raise InputError("`--push_to_hub` pushes what was trained: leave out `--do_train false`.")
    if arguments.report.gradient_diversity_steps is not None and not training.do_train:
        raise InputError("`--gradient_diversity_steps` looks at a training: leave out `--do_train false`.")
    _check_metric(arguments)
    if training.label_smoothing_factor:
        raise InputError(
            "Trainer's `--label_smoothing_factor` takes the labels away from the heads: use `--label_smoothing`."
        )
    if model.train_mode == "lora" and uses_fsdp(training):
        raise InputError("Adapters cannot be merged from FSDP's shards: use `--train_mode lora` without FSDP.")
    try:
        for callback in get_reporting_integration_callbacks(training.report_to):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        raise InputError(f"`--report_to` cannot be used: {error}") from error


def _check_metric(arguments: RunArguments) -> None:
    """The best checkpoint can be chosen by what an evaluation finds, and by what the training changes."""
    model, training = arguments.model, arguments.training
    # Trainer takes the name with and without.
    metric = training.metric_for_best_model = (training.metric_for_best_model or "loss").removeprefix("eval_")
    check_choice("metric_for_best_model", metric, (*model.scored_metrics, *model.decoded_metrics))
    if metric == "heads_loss" and (arguments.report.compare or model.kind not in ("simple", "wdr", "masked")):
        raise InputError("`--metric_for_best_model heads_loss` needs heads in every model: choose another.")
    if model.train_mode == "heads":
        if metric not in ("loss", "heads_loss", "best_perplexity"):
            raise InputError(f"With a frozen backbone `{metric}` never changes: leave out `--metric_for_best_model`.")
        # Nor does the next word's loss.
        training.metric_for_best_model = "heads_loss" if metric == "loss" else metric


def _check_comparable(arguments: RunArguments) -> None:
    model = arguments.model
    if not arguments.training.do_train:
        raise InputError("`--compare` trains models: leave out `--do_train false`.")
    if model.train_mode == "heads":
        raise InputError("`--compare` trains a model without heads, too: leave out `--train_mode heads`.")
    if model.model_name_or_path and RunFolder(model.model_name_or_path).has_heads():
        raise InputError("`--compare` gives heads of each kind to a plain model: this one has heads already.")


def with_data_of_run(arguments: RunArguments) -> RunArguments:
    """
    Evaluation of a run: what its model is used to, and without a word about the data what it was trained and evaluated
    on.
    """
    data = arguments.data
    settings = RunFolder(arguments.model.model_name_or_path).settings()
    defaults = type(data)()
    names = data.of_the_model if data.is_given() else data.which_data
    # What was asked for stands.
    names = [name for name in names if name in settings and getattr(data, name) == getattr(defaults, name)]
    return replace(arguments, data=replace(data, **{name: settings[name] for name in names}))


def others(arguments: RunArguments) -> list[RunArguments]:
    """The same run for the other kinds of model, each in a folder of its own inside the run's."""
    own = arguments.model.kind
    # Without heads, N says nothing about the others'.
    ngram_size = None if arguments.model.ngram_size == 1 else arguments.model.ngram_size
    runs = []
    for name, options in arguments.model.kinds.items():
        if name != own:
            # `TrainingArguments` is not made to be made twice.
            training = copy.copy(arguments.training)
            training.output_dir = str(Path(arguments.training.output_dir) / name)
            data = replace(arguments.data, tokenizer=arguments.training.output_dir)
            model = replace(arguments.model, **{"ngram_size": ngram_size, **options})
            runs.append(replace(arguments, data=data, model=model, training=training))
    return runs


def run_settings(arguments: RunArguments) -> dict[str, Any]:
    """What makes a run this run and no other, as options that can be given again."""
    options = {**asdict(arguments.data), **asdict(arguments.model), **asdict(arguments.report)}
    defaults = type(arguments.training)(arguments.training.output_dir).to_dict()
    # What the preset has an opinion about is always said: Trainer's default is not the preset's.
    named = {"seed", "learning_rate"}
    if arguments.model.preset is not None:
        named |= arguments.model.presets[arguments.model.preset].arguments.keys()
    for name, value in arguments.training.to_dict().items():
        if name in named or value != defaults[name]:
            options[name] = value
    return {name: value for name, value in options.items() if value is not None and name not in NOT_SETTINGS}
