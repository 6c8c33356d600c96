"""The options of a run taken together: which are compatible, and which identify the run."""

import copy
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...data.errors import InputError
from ...evaluation.models import load_config
from .arguments import RunArguments, RunTrainingArguments, uses_fsdp
from .checkpoints import weights_digest
from .checks import check_choice
from .run_folder import MODEL_WEIGHTS, RunFolder, run_of
from .trainer_parts import check_trainer_parts

# Options that do not change the trained weights: hardware, reports, what is saved.
# fmt: off
NOT_SETTINGS = (
    "accelerator_config", "cache_limit", "compare", "dataloader_num_workers", "dataloader_persistent_workers",
    "dataloader_pin_memory", "dataloader_prefetch_factor", "ddp_backend", "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters", "ddp_timeout", "deepspeed", "disable_tqdm", "do_train", "ensemble", "fsdp",
    "fsdp_config", "gradient_diversity_steps", "hub_model_id", "hub_private_repo", "hub_token", "lambda_grid",
    "length_penalty", "log_level", "logging_first_step", "logging_steps", "logging_strategy", "num_beams",
    "num_examples", "num_workers", "output_dir", "per_device_eval_batch_size", "prompt", "push_to_hub", "report_to",
    "resume_from_checkpoint", "run_name", "sample_tokens", "save_total_limit", "translate", "translate_to",
    "use_cpu", "use_mtp",
)
# Options that a checkpoint's optimizer and schedule have from its own run.
RESTORED = (
    "optim", "optim_args", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps",
)
# fmt: on
# Switches that older runs do not have: left out of the settings if they are off.
NEW_SWITCHES = ("cache_hidden_states",)
# Settings that select the best checkpoint, by default those of the ensemble.
SELECTION = ("metric_for_best_model", "greater_is_better")
# Metrics that training can change if the backbone is frozen; `loss` then stands for `heads_loss`.
FROZEN_METRICS = (None, "loss", "heads_loss", "accepted_drafts", "best_perplexity", "fitted_perplexity")

# Files that are named; a text may have thousands.
NAMED_FILES = 6


def check_together(arguments: RunArguments) -> None:
    """Raise an `InputError` for options of a run that do not go together, with one sentence on what to change."""
    model, training = arguments.model, arguments.training
    if not training.do_train and model.model_name_or_path is None:
        raise InputError("`--do_train false` needs a trained model: set `--model_name_or_path`.")
    if training.n_gpu > 1:
        raise InputError(
            "Several GPUs in one process are not supported: use `accelerate launch` (see examples/accelerate), or set "
            "CUDA_VISIBLE_DEVICES=0 to use one GPU."
        )
    if arguments.report.compare:
        _check_comparable(arguments)
    elif arguments.report.use_mtp and model.kind not in ("simple", "wdr"):
        raise InputError(
            "`--use_mtp` needs a model with heads: set `--ngram_size` to at least 2, or remove `--use_mtp`."
        )
    if arguments.report.ensemble == "fitted" and model.kind in ("plain", "bow") and not arguments.report.compare:
        raise InputError(
            "`--ensemble fitted` needs a model with heads: set `--ngram_size` to at least 2, or remove the option."
        )
    if training.push_to_hub and not training.do_train:
        raise InputError("`--push_to_hub` needs a trained run to push: remove `--do_train false`.")
    if arguments.report.gradient_diversity_steps is not None and not training.do_train:
        raise InputError("`--gradient_diversity_steps` measures while training: remove `--do_train false`.")
    _check_metric(arguments)
    if training.label_smoothing_factor:
        raise InputError("`--label_smoothing_factor` would train without the heads: use `--label_smoothing` instead.")
    if model.train_mode == "lora" and uses_fsdp(training):
        raise InputError(
            "`--train_mode lora` does not work with FSDP, as sharded adapters cannot be merged: train without FSDP."
        )
    check_trainer_parts(training)


def _check_metric(arguments: RunArguments) -> None:
    """
    Raise an `InputError` if `--metric_for_best_model` is unknown, needs heads that some model lacks, or cannot change
    in training.
    """
    model, metric = arguments.model, _requested_metric(arguments)
    check_choice("metric_for_best_model", metric, (*model.scored_metrics, *model.decoded_metrics))
    if metric == "heads_loss" and (arguments.report.compare or model.kind not in ("simple", "wdr", "masked")):
        raise InputError(
            "`--metric_for_best_model heads_loss` needs heads in every model that is trained: choose another metric."
        )
    if model.train_mode == "heads" and metric not in FROZEN_METRICS:
        raise InputError(
            f"`--metric_for_best_model {metric}` never changes with `--train_mode heads`, which freezes the backbone: "
            "choose `heads_loss`, `accepted_drafts`, `best_perplexity` or `fitted_perplexity`."
        )
    if metric == "accepted_drafts" and not measures_acceptance(arguments):
        raise InputError(
            "`--metric_for_best_model accepted_drafts` needs `--train_mode heads` without FSDP: set that, or choose "
            "another metric."
        )
    if metric == "fitted_perplexity" and not fits_in_training(arguments):
        raise InputError(
            "`--metric_for_best_model fitted_perplexity` does not work with FSDP, which shards the model: "
            "choose another metric."
        )


def _check_comparable(arguments: RunArguments) -> None:
    model = arguments.model
    if not arguments.training.do_train:
        raise InputError("`--compare` trains every model that it compares: remove `--do_train false`.")
    if model.train_mode == "heads":
        raise InputError(
            "`--compare` includes a model without heads, which `--train_mode heads` cannot train: remove one of the "
            "two options."
        )
    if model.model_name_or_path and RunFolder(model.model_name_or_path).has_heads():
        raise InputError(
            "`--compare` needs a checkpoint without heads, so that all models start alike: choose another "
            "`--model_name_or_path`."
        )


def best_metric(arguments: RunArguments) -> str:
    """
    Return the metric that selects the best checkpoint: that of `--metric_for_best_model`, without the prefix `eval_`.
    By default, it is what the trained model will be used with: the accepted drafts or the loss of the heads, if only
    they are trained; the perplexity of the ensemble, unless the recipe is the paper's; else the loss without the
    ensemble.
    """
    metric = _requested_metric(arguments)
    if arguments.model.train_mode == "heads" and metric in (None, "loss"):
        counts_drafts = arguments.model.only_drafts and measures_acceptance(arguments)
        return "accepted_drafts" if counts_drafts else "heads_loss"
    if metric is not None:
        return metric
    if fits_in_training(arguments):
        return "fitted_perplexity"
    uses_ensemble = arguments.report.has_ensemble and arguments.model.recipe != "paper"
    return "best_perplexity" if uses_ensemble else "loss"


def fits_in_training(arguments: RunArguments) -> bool:
    """
    Return whether evaluations fit the ensemble's weights: if the run does at its end, or for its metric; but not with
    sharded weights.
    """
    needs_fit = arguments.fits_ensemble or _requested_metric(arguments) == "fitted_perplexity"
    return needs_fit and not uses_fsdp(arguments.training)


def measures_acceptance(arguments: RunArguments) -> bool:
    """Return whether evaluations count the accepted drafts of the heads, which takes all weights in one process."""
    return arguments.model.train_mode == "heads" and not uses_fsdp(arguments.training)


def _requested_metric(arguments: RunArguments) -> str | None:
    # Trainer accepts the name with and without this prefix.
    metric = arguments.training.requested_metric
    return None if metric is None else metric.removeprefix("eval_")


def with_data_of_run(arguments: RunArguments) -> RunArguments:
    """
    Return the options for evaluating the run of `--model_name_or_path`. Data options that are not given come from its
    `run.yaml`: `model_options` and, if no data is given, `data_options`. Without a `run.yaml`, nothing changes.
    """
    data = arguments.data
    settings = run_of(arguments.model.model_name_or_path).settings()
    if settings:
        # Other tasks have data options of the same names.
        load_config(arguments.model.model_name_or_path, arguments.model.model_kind)
    defaults = type(data)()
    names = data.model_options if data.is_given() else (*data.data_options, *data.model_options)
    names = [name for name in names if name in settings and getattr(data, name) == getattr(defaults, name)]
    return replace(arguments, data=replace(data, **{name: settings[name] for name in names}))


def describe_data(data: Any) -> str:
    """Return the names of a run's dataset or files, given its data options; without any, where its data comes from."""
    if data.dataset_name is not None:
        return data.dataset_name
    if not data.is_given():
        return "the model's own text" if data.validates_on_own_text else "built in"
    files = [path for name in data.file_options for path in getattr(data, name) or ()]
    others = f" and {len(files) - NAMED_FILES} more" if len(files) > NAMED_FILES else ""
    return ", ".join(files[:NAMED_FILES]) + others


def output_folder(arguments: RunArguments) -> Path:
    """
    Return the folder of the results: `--output_dir`. An evaluation writes by default to the folder of its model, or if
    that is on the Hub or read-only, to one that is named after it.
    """
    training = arguments.training
    default = type(training).__dataclass_fields__["output_dir"].default
    if training.do_train or training.output_dir != default:
        return Path(training.output_dir)
    model = Path(arguments.model.model_name_or_path)
    if model.is_dir() and os.access(model, os.W_OK):
        return model
    return Path(default).with_name(f"{model.name}-evaluation")


def check_restored(training: RunTrainingArguments, checkpoint: Path) -> None:
    """
    Raise an `InputError` if the run of a checkpoint, by its `run.yaml`, had another optimizer or schedule than these
    options. Without a `run.yaml`, nothing is checked.
    """
    saved = RunFolder(checkpoint.parent).settings()
    if not saved:
        return
    now, defaults = training.to_dict(), _default_options(training)
    before = {name: saved.get(name, defaults[name]) for name in RESTORED}
    different = [name for name in RESTORED if before[name] != now[name]]
    if different:
        name = different[0]
        raise InputError(
            f"`--{name} {now[name]}` has no effect on {checkpoint}, whose optimizer and schedule are restored with "
            f"{before[name]}. Give that value, or train its weights anew with `--model_name_or_path {checkpoint}`."
        )


def comparison_runs(arguments: RunArguments) -> list[RunArguments]:
    """Return the options of the same run for each other kind of model, in a subfolder of that name."""
    own = arguments.model.kind
    # N = 1 selects the plain model; the others get the default N.
    ngram_size = None if arguments.model.ngram_size == 1 else arguments.model.ngram_size
    runs = []
    for name, options in arguments.model.kinds.items():
        if name != own:
            # Not `replace`: `TrainingArguments.__post_init__` cannot run twice.
            training = copy.copy(arguments.training)
            training.output_dir = str(Path(arguments.training.output_dir) / name)
            model = replace(arguments.model, **{"ngram_size": ngram_size, **options})
            runs.append(replace(arguments, model=model, training=training))
    return runs


def run_settings(arguments: RunArguments) -> dict[str, Any]:
    """
    Return the options that identify a run, for `run.yaml`: those that change the trained weights, and a digest of the
    weights that it begins with, if they are in a folder. As a settings file, it gives the same run. Options that are
    `None`, and those of Trainer with its default, are left out, unless the preset has another default.
    """
    options = {**asdict(arguments.data), **asdict(arguments.model), **asdict(arguments.report)}
    defaults = _default_options(arguments.training)
    # Always included, even if `None`: the preset's defaults are not those of the options.
    preset = arguments.model.preset
    preset_options = arguments.model.presets[preset].arguments.keys() if preset is not None else set()
    always_included = {"seed", "learning_rate", *preset_options}
    for name, value in arguments.training.to_dict().items():
        if name in always_included or (value != defaults[name] and _has_effect(name, arguments.training)):
            options[name] = value
    if arguments.model.model_name_or_path is not None and arguments.training.do_train:
        options[MODEL_WEIGHTS] = weights_digest(Path(arguments.model.model_name_or_path))
    return {
        name: value
        for name, value in options.items()
        if (value is not None or name in preset_options)
        and name not in NOT_SETTINGS
        and (value or name not in NEW_SWITCHES)
    }


def _default_options(training: RunTrainingArguments) -> dict[str, Any]:
    """Return Trainer's options with their defaults for this script, and the folder of the run."""
    # Without training, the folder is not checked: the results may go elsewhere.
    return type(training)(training.output_dir, do_train=training.do_train).to_dict()


def _has_effect(name: str, training: RunTrainingArguments) -> bool:
    """Return whether an option of Trainer is used: a number of steps between events only if they are by steps."""
    strategies = {"eval_steps": training.eval_strategy, "save_steps": training.save_strategy}
    return strategies.get(name, "steps") == "steps"
