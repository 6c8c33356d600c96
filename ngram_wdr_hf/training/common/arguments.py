"""Options shared by the training scripts."""

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import yaml
from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ...method.configuration import HEAD_INPUTS, HEAD_LOSS_TOKENS
from ..head_schedule import HEAD_LOSS_SCHEDULES
from .checks import (
    FRACTION,
    POSITIVE,
    SHARE,
    check_at_least,
    check_choice,
    check_number,
    check_output_folder,
    check_trainer_options,
)
from .option_fields import best_metric_field, compare_field, overrides_help, recipe_field
from .presets import DEFAULT_PRESET, Preset
from .recipes import ENSEMBLES, RECIPES

TRAIN_MODES = ("full", "heads", "lora")
TARGETS = ("wdr", "simple", "none")
# What `--metric_for_best_model` accepts: the metrics of every evaluation.
SCORED_METRICS = (
    "loss", "perplexity", "best_perplexity", "fitted_perplexity", "next_word_loss", "heads_loss", "accepted_drafts",
)  # fmt: skip
# For new heads; Trainer's default of 5e-5 is for trained weights.
HEADS_LEARNING_RATE = 3e-3
USUAL_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def parse_overrides(overrides: list[str] | None) -> dict[str, Any]:
    """Return the fields of `--config_overrides`, a list of `name=value` with values as in YAML."""
    fields = {}
    for override in overrides or ():
        name, equals, value = override.partition("=")
        if not (name and equals):
            raise InputError(f"`--config_overrides` must be `name=value`, got {override!r}.")
        try:
            fields[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"`--config_overrides {override}` has no value that can be read.") from error
    return fields


@dataclass
class ModelArguments:
    """Options for the model: a new one by `--preset`, or a checkpoint."""

    presets: ClassVar[dict[str, Preset]]
    # The kind of checkpoint that the script takes, as in `load_config`.
    model_kind: ClassVar[str]
    targets: ClassVar[tuple[str, ...]] = TARGETS
    default_recipe: ClassVar[str] = "free"
    scored_metrics: ClassVar[tuple[str, ...]] = SCORED_METRICS
    # Further choices for `--metric_for_best_model` that need translations of the validation set.
    decoded_metrics: ClassVar[tuple[str, ...]] = ()
    # Whether the heads are trained for drafts alone. Overridden for models that can generate.
    only_drafts: ClassVar[bool] = False
    # The kinds of model for `--compare`, with the options that select each.
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "plain": {"ngram_target": "none", "ngram_size": None},
        "simple": {"ngram_target": "simple"},
        "wdr": {"ngram_target": "wdr"},
    }

    preset: str | None = None
    model_name_or_path: str | None = HfArg(
        default=None,
        help="Checkpoint to start from, with or without N-gram heads: a folder or a name on the Hub. Default: "
        "a new model of the size `--preset`.",
    )
    config_overrides: list[str] | None = HfArg(default=None, help=overrides_help("n_layer=3 n_embd=96"))
    ngram_size: int | None = HfArg(
        default=None,
        help="The paper's N: the next token plus N - 1 heads; 1 is the plain model. Default: the checkpoint's or "
        "preset's N, else 4.",
    )
    ngram_target: str | None = HfArg(
        default=None,
        help="What the heads predict: `wdr`, word differences; `simple`, the embeddings of future tokens; `none`, no "
        "heads. Default: the checkpoint's, else `wdr`.",
    )
    recipe: str | None = recipe_field("free")
    head_gradient: float | None = HfArg(
        default=None,
        help="The share γ of the heads' gradient that changes the model, from 0 to 1. Default: the recipe's.",
    )
    head_loss_weight: float | None = HfArg(
        default=None,
        help="Weight w of the heads in the loss `L_0 + w mean(L_n)`. Default: the recipe's; with `paper`, the loss is "
        "`1/2 L_0 + 1/2 mean(L_n)`.",
    )
    head_loss_decay: float | None = HfArg(
        default=None,
        help="Loss weight of head n+1 relative to head n, greater than 0 and at most 1. Default: the recipe's.",
    )
    head_loss_schedule: str = HfArg(
        default="constant",
        help="The heads' loss weights over time: `constant`; `linear`, down to 0 at the end; `curriculum`, starting "
        "without heads and adding one after each N-th part of the training.",
    )
    head_sample_rate: float | None = HfArg(
        default=None,
        help="The share ρ of the positions that each head is trained on in a step, chosen at random, greater than 0 "
        "and at most 1. A smaller share makes training faster. Default: the recipe's.",
    )
    ngram_head_reads: str | None = HfArg(
        default=None,
        help="What head n reads: `hidden`, the hidden state, as in the paper; `hidden+tokens`, also the n tokens "
        "before the predicted one, for better drafts. Default: the checkpoint's; for new heads, the recipe's.",
    )
    ngram_head_expansion: int | None = HfArg(
        default=None,
        help="Width of the heads between their two layers, in multiples of the model's width. Wider heads draft "
        "better, and cost more. Default: the checkpoint's, else 1, as in the paper.",
    )
    label_smoothing: float | None = HfArg(
        default=None,
        help="Label smoothing ε of the training loss, from 0 (off) to 1. Default: the preset's or checkpoint's, else "
        "0.",
    )
    train_mode: str = HfArg(
        default="full",
        help="What to train: `full`, all weights; `heads`, only the heads, on a frozen checkpoint, by default with a "
        f"learning rate of {HEADS_LEARNING_RATE:g}; `lora`, PEFT "
        "adapters in the backbone plus all head weights. Adapters are merged after training.",
    )
    lora_rank: int = HfArg(default=16, help="Rank of the LoRA adapters; used only with `--train_mode lora`.")

    def __post_init__(self):
        check_choice("preset", self.preset, self.presets)
        check_choice("train_mode", self.train_mode, TRAIN_MODES)
        check_choice("ngram_target", self.ngram_target, self.targets)
        check_at_least("ngram_size", self.ngram_size, 1)
        check_at_least("ngram_head_expansion", self.ngram_head_expansion, 1)
        check_at_least("lora_rank", self.lora_rank, 1)
        check_number("label_smoothing", self.label_smoothing, FRACTION)
        check_choice("recipe", self.recipe, RECIPES)
        if self.config_overrides and self.model_name_or_path is not None:
            raise InputError(
                "`--config_overrides` is for new models: a checkpoint has its own sizes. Remove one of the options."
            )
        parse_overrides(self.config_overrides)
        check_choice("head_loss_schedule", self.head_loss_schedule, HEAD_LOSS_SCHEDULES)
        check_choice("ngram_head_reads", self.ngram_head_reads, HEAD_INPUTS)
        check_number("head_gradient", self.head_gradient, FRACTION)
        check_number("head_loss_weight", self.head_loss_weight, POSITIVE)
        check_number("head_loss_decay", self.head_loss_decay, SHARE)
        check_number("head_sample_rate", self.head_sample_rate, SHARE)
        if self.ngram_target == "none" and (self.ngram_size or 1) > 1:
            raise InputError(
                "`--ngram_target none` means no heads, but `--ngram_size` is greater than 1. Remove one of the two "
                "options."
            )
        if self.model_name_or_path is None:
            self.preset = self.preset or DEFAULT_PRESET
            self.recipe = self.recipe or self.presets[self.preset].recipe or self.default_recipe
        if self.train_mode != "full" and self.model_name_or_path is None:
            raise InputError(f"`--train_mode {self.train_mode}` needs a trained model: set `--model_name_or_path`.")

    @property
    def new_config(self) -> dict[str, Any]:
        """The configuration fields of a new model: the preset's, with `--config_overrides`."""
        return {**self.presets[self.preset].config, **parse_overrides(self.config_overrides)}

    @property
    def kind(self) -> str:
        """The key in `kinds` that these options select, such as `"wdr"`; `"plain"` without heads."""
        return "plain" if self.ngram_size == 1 or self.ngram_target == "none" else self.ngram_target or "wdr"


@dataclass
class GenerativeModelArguments(ModelArguments):
    """Options for a model that can generate: those of `ModelArguments`, and which tokens the heads draft."""

    draft_vocab_size: int | None = HfArg(
        default=None,
        help="Number of tokens that the heads may draft in `generate(use_mtp=True)`: the most frequent ones of the "
        "training text (of streamed text or without training, the checkpoint's, then the first ids of the "
        "vocabulary). Fewer tokens make drafting cheaper. Default: with `--train_mode heads`, "
        "as many as cover 98 percent of the training text; else the checkpoint's, else the whole vocabulary.",
    )
    head_loss_tokens: str | None = HfArg(
        default=None,
        help="The vocabulary of the heads' training loss: `all` tokens, or only the `draft` tokens, which is faster "
        "with a large vocabulary, but only good for drafting. Default: the checkpoint's, else `all`.",
    )

    @property
    def only_drafts(self) -> bool:
        """Whether the heads are trained for drafts alone, not for the ensemble."""
        return self.head_loss_tokens == "draft"

    def __post_init__(self):
        super().__post_init__()
        check_at_least("draft_vocab_size", self.draft_vocab_size, 1)
        check_choice("head_loss_tokens", self.head_loss_tokens, HEAD_LOSS_TOKENS)


@dataclass
class ReportArguments:
    """Options for evaluation and reports: early stopping, gradient diversity, comparison of the kinds of model."""

    # Overridden for models that can generate: only they have an ensemble and drafts.
    has_ensemble: ClassVar[bool] = False
    lambda_grid: ClassVar[list[float] | None] = None
    ensemble: ClassVar[str | None] = None
    use_mtp: ClassVar[bool] = False

    patience: int | None = HfArg(
        default=None,
        help="Stop after this many evaluations without improvement of `--metric_for_best_model`. No effect with "
        "`--load_best_model_at_end false`. Default: the preset's, else no early stopping.",
    )
    gradient_diversity_steps: int | None = HfArg(
        default=None,
        help="Measure, log and plot the paper's gradient diversity (how much the gradients of the batch rows "
        "differ) every this many steps. Each measurement takes as long as one or two steps. Default: never.",
    )
    compare: bool = compare_field("such as plain and simple N-gram")

    def __post_init__(self):
        check_at_least("patience", self.patience, 1)
        check_at_least("gradient_diversity_steps", self.gradient_diversity_steps, 1)


@dataclass
class GenerativeReportArguments(ReportArguments):
    """Options for evaluation and reports of a model that can generate, with the ensemble and `use_mtp`."""

    has_ensemble: ClassVar[bool] = True

    ensemble: str | None = HfArg(
        default=None,
        help="The ensemble to save with the model: `fitted`, the weights of the next token and of each head with the "
        "lowest validation loss; `lambda`, the best λ of `--lambda_grid`. Default: the recipe's; none for heads that "
        "are trained for drafts alone or validated on the model's own text; without training, the checkpoint's "
        "ensemble is evaluated.",
    )
    lambda_grid: list[float] | None = HfArg(
        default=None,
        help="Values of λ to evaluate. Default: 0 and the paper's λ if the preset has one, else 0 to 0.6 in steps of "
        "0.1.",
    )
    use_mtp: bool = HfArg(
        default=False,
        help="Generate by speculative decoding: the heads draft tokens and the model checks them. The output "
        "is that of plain decoding, or has the same distribution.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("ensemble", self.ensemble, ENSEMBLES)
        if self.lambda_grid is None:
            return
        if not self.lambda_grid:
            raise InputError("`--lambda_grid` is empty. Give at least one value from 0 to 1.")
        for value in self.lambda_grid:
            check_number("lambda_grid", value, FRACTION)
        self.lambda_grid = sorted(set(self.lambda_grid))


@dataclass
class RunTrainingArguments(TrainingArguments):
    """Trainer's options, with defaults for a complete run: evaluate and save every epoch, keep the best checkpoint."""

    output_dir: str | None = None
    do_train: bool = HfArg(
        default=True,
        help="Whether to train. With `false`, `--model_name_or_path` is only evaluated, and no run is saved.",
    )
    eval_strategy: str = HfArg(default="epoch", help="When to evaluate: `epoch`, `steps` or `no`.")
    save_strategy: str | None = HfArg(
        default=None,
        help="When to save a checkpoint: `epoch`, `steps`, `best` or `no`. Default: as `--eval_strategy`.",
    )
    save_steps: float | None = HfArg(
        default=None,
        help="With `--save_strategy steps`, save every this many steps. Default: as `--eval_steps`, else "
        "`--logging_steps`.",
    )
    save_total_limit: int | None = HfArg(
        default=2, help="Number of checkpoints to keep; while training, at least the best and the last. 0 keeps all."
    )
    load_best_model_at_end: bool = HfArg(
        default=True,
        help="Whether the result is the checkpoint with the best `--metric_for_best_model` instead of the last. "
        "Always off with `--eval_strategy no`.",
    )
    metric_for_best_model: str | None = best_metric_field(
        "the perplexity of the ensemble; without one and with `--recipe paper`, the loss"
    )
    learning_rate: float = HfArg(
        default=TrainingArguments.learning_rate,
        help="Peak learning rate. A preset has its own; otherwise, the default for `--train_mode heads` is "
        f"{HEADS_LEARNING_RATE:g}.",
    )
    logging_steps: float = HfArg(
        default=50, help="Log the losses every this many steps; a value below 1 is a share of all steps."
    )
    push_to_hub: bool = HfArg(
        default=False,
        help="Push the finished run to the Hub, to `--hub_model_id` or a repository named like `--output_dir`.",
    )
    restore_callback_states_from_checkpoint: bool = HfArg(
        default=True, help="Whether resuming restores callbacks, such as the early-stopping counter."
    )
    ddp_find_unused_parameters: bool | None = HfArg(
        default=False,
        help="Whether DDP searches for unused weights. Not needed here: every weight is used in every step.",
    )

    def __post_init__(self):
        check_trainer_options(self)
        if self.do_train:
            check_output_folder("output_dir", self.output_dir)
        has_accelerator = torch.accelerator.is_available()
        self.dataloader_pin_memory = self.dataloader_pin_memory and has_accelerator
        # Without a GPU, Trainer needs `use_cpu` to connect several processes.
        self.use_cpu = self.use_cpu or not has_accelerator
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith("perplexity"):
            # Trainer maximizes every metric whose name does not end in `loss`.
            self.greater_is_better = False
        # Trainer sets a default.
        self.requested_metric = self.metric_for_best_model
        self.save_strategy = self.save_strategy or self.eval_strategy
        self.save_steps = self.save_steps or self.eval_steps or self.logging_steps
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
        super().__post_init__()


def uses_fsdp(training: TrainingArguments) -> bool:
    """Return whether FSDP is on, by Trainer's option `--fsdp` or by the configuration of `accelerate launch`."""
    return bool(training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true"


@dataclass
class RunArguments:
    """All options of a training script, in one object per group."""

    data: Any
    model: ModelArguments
    report: ReportArguments
    training: RunTrainingArguments

    @property
    def searches_ensemble(self) -> bool:
        """
        Whether to look for an ensemble by default: not if the heads are trained for drafts alone, and not if the model
        wrote the validation text itself, because the best weights would only undo its sampling temperature.
        """
        return self.report.has_ensemble and not (self.model.only_drafts or self.data.validates_on_own_text)

    @property
    def lambda_grid(self) -> list[float]:
        """
        The values of λ to evaluate: those of `--lambda_grid`, else 0 and the preset's λ for this kind of model, else
        0 to 0.6 in steps of 0.1; 0 alone if there is no search for an ensemble.
        """
        if self.report.lambda_grid is not None:
            return self.report.lambda_grid
        if not self.searches_ensemble:
            return [0.0]
        lambdas = self.model.presets[self.model.preset].lambdas if self.model.preset else {}
        return [0.0, lambdas[self.model.kind]] if self.model.kind in lambdas else list(USUAL_GRID)

    @property
    def fits_ensemble(self) -> bool:
        """
        Whether to fit the weights of the ensemble on the validation set: if `--ensemble` asks for it, or in training
        by default the recipe.
        """
        if self.report.ensemble is None and self.training.do_train and self.searches_ensemble:
            return RECIPES[self.model.recipe or self.model.default_recipe].ensemble == "fitted"
        return self.report.ensemble == "fitted"
