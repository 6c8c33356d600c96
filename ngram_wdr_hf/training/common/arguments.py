"""The options that the training scripts share."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ...method.configuration import check_fraction
from .presets import DEFAULT_PRESET, Preset

TRAIN_MODES = ("full", "heads", "lora")
TARGETS = ("wdr", "simple", "none")
# The metrics of every evaluation of running text, for `--metric_for_best_model`.
SCORED_METRICS = ("loss", "perplexity", "best_perplexity", "next_word_loss", "heads_loss")
USUAL_GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


@dataclass
class ModelArguments:
    """Which model."""

    presets: ClassVar[dict[str, Preset]]
    targets: ClassVar[tuple[str, ...]] = TARGETS
    scored_metrics: ClassVar[tuple[str, ...]] = SCORED_METRICS
    # Further metrics for `--metric_for_best_model`, for which the validation set is translated.
    decoded_metrics: ClassVar[tuple[str, ...]] = ()
    # The kinds of model that `--compare` puts side by side, and the options that make them.
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "plain": {"ngram_target": "none", "ngram_size": None},
        "simple": {"ngram_target": "simple"},
        "wdr": {"ngram_target": "wdr"},
    }

    preset: str | None = None
    model_name_or_path: str | None = HfArg(
        default=None, help="Begin with this checkpoint, plain or one of ours, a folder or a name."
    )
    ngram_size: int | None = HfArg(
        default=None, help="The paper's N; 1 is the plain model. Default: the checkpoint's, else 4."
    )
    ngram_target: str | None = HfArg(
        default=None,
        help="What the heads learn: `wdr`, word differences; `simple`, the words themselves; `none`: no heads. "
        "Default: the checkpoint's, else `wdr`.",
    )
    label_smoothing: float | None = HfArg(
        default=None, help="The ε of label smoothing in the loss. Default: the preset's or checkpoint's."
    )
    train_mode: str = HfArg(
        default="full",
        help="`full`: all weights; `heads`: the heads alone, on a frozen checkpoint; `lora`: PEFT adapters in "
        "the backbone and the heads in full, merged at the end.",
    )
    lora_rank: int = HfArg(default=16, help="The adapters' rank, with `--train_mode lora`.")

    def __post_init__(self):
        check_choice("preset", self.preset, self.presets)
        check_choice("train_mode", self.train_mode, TRAIN_MODES)
        check_choice("ngram_target", self.ngram_target, self.targets)
        check_at_least("ngram_size", self.ngram_size, 1)
        check_at_least("lora_rank", self.lora_rank, 1)
        if self.ngram_target == "none" and (self.ngram_size or 1) > 1:
            raise InputError("`--ngram_target none` has no heads: leave out `--ngram_size`, or choose a target.")
        if self.model_name_or_path is None:
            self.preset = self.preset or DEFAULT_PRESET
        if self.train_mode != "full" and self.model_name_or_path is None:
            raise InputError(
                f"`--train_mode {self.train_mode}` adapts a trained model: say which with `--model_name_or_path`."
            )

    @property
    def kind(self) -> str:
        """Which of `kinds` this is."""
        return "plain" if self.ngram_size == 1 or self.ngram_target == "none" else self.ngram_target or "wdr"


@dataclass
class GenerativeModelArguments(ModelArguments):
    """Which model, of those that generate."""

    draft_vocab_size: int | None = HfArg(
        default=None,
        help="Let the heads draft, for `generate(use_mtp=True)`, the so many most frequent tokens of the "
        "training text only, which costs less (the first, of a text that is streamed). Default: all.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("draft_vocab_size", self.draft_vocab_size, 1)


@dataclass
class ReportArguments:
    """What is evaluated and shown."""

    # Only models that generate have an ensemble and drafts.
    lambda_grid: ClassVar[list[float] | None] = None
    use_mtp: ClassVar[bool] = False

    patience: int | None = HfArg(
        default=None, help="Stop after so many evaluations without a better one. Default: the preset's."
    )
    gradient_diversity_steps: int | None = HfArg(
        default=None,
        help="Every so many steps, log how differently the rows of a batch pull at the weights (the paper's "
        "gradient diversity), and plot it. Takes the time of one or two steps. Default: never.",
    )
    compare: bool = HfArg(
        default=False, help="Also train the other kinds of model, with the same settings, and compare them."
    )

    def __post_init__(self):
        check_at_least("patience", self.patience, 1)
        check_at_least("gradient_diversity_steps", self.gradient_diversity_steps, 1)


@dataclass
class GenerativeReportArguments(ReportArguments):
    """What is evaluated and shown, the ensemble and generated text included."""

    lambda_grid: list[float] | None = HfArg(
        default=None,
        help="The values of λ to evaluate; the best on validation is saved with the model. Default: 0 and the "
        "preset's, if the paper names one, else 0 to 0.6 in steps of 0.1.",
    )
    use_mtp: bool = HfArg(
        default=False, help="Let the heads draft what is generated; the model checks it, and the outcome is the same."
    )

    def __post_init__(self):
        super().__post_init__()
        if self.lambda_grid is None:
            return
        if not self.lambda_grid:
            raise InputError("`--lambda_grid` is empty: give at least one value from 0 to 1.")
        for value in self.lambda_grid:
            try:
                check_fraction("--lambda_grid", value)
            except ValueError as error:
                raise InputError(str(error)) from error
        self.lambda_grid = sorted(set(self.lambda_grid))


@dataclass
class RunTrainingArguments(TrainingArguments):
    """Trainer's own options, with defaults that suit a run from beginning to end."""

    output_dir: str | None = None
    do_train: bool = HfArg(default=True, help="`false`: only evaluate `--model_name_or_path`.")
    eval_strategy: str = HfArg(default="epoch", help="When to evaluate: `epoch`, `steps` or `no`.")
    save_strategy: str | None = HfArg(default=None, help="When to save. Default: after evaluations.")
    save_steps: float | None = HfArg(default=None, help="Default: `--eval_steps`.")
    save_total_limit: int | None = HfArg(
        default=2, help="How many checkpoints to keep; the best and the last are always kept."
    )
    load_best_model_at_end: bool = HfArg(default=True, help="Keep the best checkpoint, not the last.")
    logging_steps: float = HfArg(default=50, help="Log the losses every so many steps.")
    push_to_hub: bool = HfArg(
        default=False,
        help="Push the finished run to the Hub, to `--hub_model_id` or a repository of the folder's name.",
    )
    restore_callback_states_from_checkpoint: bool = HfArg(
        default=True, help="A run that goes on has as much patience left as it had."
    )
    ddp_find_unused_parameters: bool | None = HfArg(
        default=False, help="With several processes, look for unused weights; there are none."
    )

    def __post_init__(self):
        has_accelerator = torch.accelerator.is_available()
        self.dataloader_pin_memory = self.dataloader_pin_memory and has_accelerator
        # Without a GPU, several processes connect only if Trainer is told to use the CPU.
        self.use_cpu = self.use_cpu or not has_accelerator
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith("perplexity"):
            # Trainer maximizes every metric whose name does not end in `loss`.
            self.greater_is_better = False
        self.save_strategy = self.save_strategy or self.eval_strategy
        self.save_steps = self.save_steps or self.eval_steps or self.logging_steps
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
        super().__post_init__()


def uses_fsdp(training: TrainingArguments) -> bool:
    """Whether the weights are sharded, by Trainer's option or accelerate's configuration."""
    return bool(training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true"


@dataclass
class RunArguments:
    """All options of a script."""

    data: Any
    model: ModelArguments
    report: ReportArguments
    training: RunTrainingArguments

    @property
    def lambda_grid(self) -> list[float]:
        """The values of λ to evaluate."""
        if self.report.lambda_grid is not None:
            return self.report.lambda_grid
        lambdas = self.model.presets[self.model.preset].lambdas if self.model.preset else {}
        return [0.0, lambdas[self.model.kind]] if self.model.kind in lambdas else list(USUAL_GRID)


def output_dir_field(default: str) -> Any:
    """The option `--output_dir`."""
    return HfArg(default=default, help="Everything a run leaves. The same command again continues an interrupted run.")


def preset_field(presets: dict[str, Preset]) -> Any:
    """The option `--preset`, whose help lists the presets of a script."""
    listed = "; ".join(f"`{name}`: {preset.description}" for name, preset in presets.items())
    return HfArg(
        default=None,
        help=f"Sizes of a new model, and defaults for its training: {listed}. Default: `{DEFAULT_PRESET}`, or "
        "none with `--model_name_or_path`.",
    )


def check_choice(name: str, value: str | None, choices: Sequence[str]) -> None:
    """Check that an option is one of its choices."""
    if value is not None and value not in choices:
        raise InputError(f"`--{name}` must be one of {', '.join(choices)}, got {value!r}.")


def check_at_least(name: str, value: int | None, least: int) -> None:
    """Check that an option is not too small."""
    if value is not None and value < least:
        raise InputError(f"`--{name}` must be at least {least}, got {value}.")
