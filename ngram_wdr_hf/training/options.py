"""Options that several scripts share, as dataclasses."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from ..data.errors import InputError
from ..method.configuration import CHOICES
from .head_schedule import HEAD_LOSS_SCHEDULES
from .presets import RECIPES, Preset, Recipe, read_fields

# The kinds of model that `--compare` trains, with the options that select each.
KINDS = {
    "plain": "--ngram_target none --ngram_size 1",
    "simple": "--ngram_target simple",
    "wdr": "--ngram_target wdr",
}


class Options:
    """Options with a check of their values."""

    def check_at_least(self, minimum: float, *names: str) -> None:
        """Raise an `InputError` if one of these options is below `minimum`."""
        for name in names:
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise InputError(f"`--{name}` must be at least {minimum}, got {value}.")


def optional(help: str) -> Any:
    """Return the field of an option that is `None` by default."""
    return HfArg(default=None, help=help)


def choice(choices: Collection[str], help: str, default: str | None = None) -> Any:
    """Return the field of an option that takes one of `choices`."""
    return HfArg(default=default, help=help, metadata={"choices": list(choices)})


def described(named: Mapping[str, Preset | Recipe]) -> str:
    """Return names and their descriptions, for a help text."""
    return "; ".join(f"`{name}`, {each.description}" for name, each in named.items())


def preset_choice(presets: dict[str, Preset]) -> Any:
    """Return the field of `--preset`."""
    return choice(presets, f"Size of a new model, with defaults for its training: {described(presets)}.")


@dataclass
class ModelOptions(Options):
    """A new model by `--preset`, or a checkpoint; its heads; what is trained."""

    presets: ClassVar[dict[str, Preset]] = {}
    default_recipe: ClassVar[str] = "free"
    # The N of new heads on a checkpoint.
    default_ngram_size: ClassVar[int] = 4
    compared_kinds: ClassVar[dict[str, str]] = KINDS

    preset: str | None = None
    model_name_or_path: str | None = optional("Checkpoint to start from: a folder or a name on the Hub.")
    config_overrides: list[str] | None = optional(
        "Fields of the model's configuration, as `name=value`; of a checkpoint, those of its heads and training."
    )
    ngram_size: int | None = optional("The paper's N, for N - 1 heads. Default: the checkpoint's or preset's, else 4.")
    ngram_target: str | None = choice(
        ("wdr", "simple", "none"),
        "What the heads predict: word differences, or future tokens' embeddings. Default: the checkpoint's, or `wdr`.",
    )
    recipe: str | None = choice(
        RECIPES,
        f"Defaults for the heads: {described(RECIPES)}. Default: the preset's; the heads of a checkpoint keep theirs.",
    )
    ngram_head_reads: str | None = choice(
        CHOICES["ngram_head_reads"],
        "What head n reads: the hidden state, or also the n tokens in between. Default: the checkpoint's or recipe's.",
    )
    head_sample_rate: float | None = optional("Share of the positions that train a head. Default: the recipe's.")
    head_loss_schedule: str = choice(
        HEAD_LOSS_SCHEDULES, "The heads' loss weights: constant, down to 0, or one head after the other.", "constant"
    )
    label_smoothing: float | None = optional("Label smoothing. Default: the preset's or checkpoint's, else 0.")
    train_mode: str = choice(("full", "heads"), "Train all weights, or only the heads of a checkpoint.", "full")
    patience: int | None = optional("Stop after this many evaluations without improvement. Default: the preset's.")
    gradient_diversity_steps: int | None = optional("Measure the paper's gradient diversity every this many steps.")
    compare: bool = HfArg(default=False, help="Also train the other kinds of model, in subfolders.")

    def __post_init__(self):
        self.check_at_least(1, "ngram_size", "patience", "gradient_diversity_steps")
        if self.train_mode != "full" and self.model_name_or_path is None:
            raise InputError(f"`--train_mode {self.train_mode}` needs a trained model: set `--model_name_or_path`.")
        if self.train_mode == "heads" and (self.kind == "plain" or self.compare):
            raise InputError("`--train_mode heads` needs heads: remove `--ngram_target none` and `--compare`.")
        if self.ngram_target == "none" and (self.ngram_size or 1) > 1:
            raise InputError("`--ngram_target none` means no heads: remove it, or `--ngram_size`.")
        if self.compare and self.ngram_size == 1:
            raise InputError("`--compare` needs the N of the models with heads: use `--ngram_target none` for N = 1.")

    @property
    def overrides(self) -> dict[str, Any]:
        """The fields of `--config_overrides`, with values as in YAML."""
        words = self.config_overrides or []
        if not all("=" in word for word in words):
            raise InputError("`--config_overrides` must be a list of `name=value`.")
        return read_fields(words)

    @property
    def kind(self) -> str:
        """The kind of model, a key of `KINDS`; "plain" without heads."""
        return "plain" if self.ngram_size == 1 or self.ngram_target == "none" else self.ngram_target or "wdr"


@dataclass
class EnsembleOptions(Options):
    """The ensemble and the drafts of a model that can generate."""

    ensemble: str | None = choice(
        ("fitted", "lambda"), "Ensemble to save: fitted weights, or the best λ in the grid. Default: the recipe's."
    )
    lambda_grid: list[float] | None = optional("Values of λ. Default: 0 and the preset's, else 0, 0.1, ..., 0.6.")
    use_mtp: bool = HfArg(default=False, help="Generate by speculative decoding with the heads, where possible.")
    draft_vocab_size: int | None = optional(
        "Number of tokens to draft from, the most frequent ones. Default: with `--train_mode heads`, as many as cover "
        "98 percent of the training text; else the checkpoint's, else all."
    )

    def __post_init__(self):
        self.check_at_least(1, "draft_vocab_size")
        if self.lambda_grid is not None:
            if not self.lambda_grid or not all(0 <= value <= 1 for value in self.lambda_grid):
                raise InputError("`--lambda_grid` must be a list of values from 0 to 1.")
            self.lambda_grid = sorted(set(self.lambda_grid))


@dataclass
class TextOptions(Options):
    """A text to train on: files or a dataset, its tokenizer and blocks."""

    # The options that name a text. An evaluation without them reads the text of the evaluated run.
    sources: ClassVar[tuple[str, ...]] = ("train_file", "validation_file", "test_file", "dataset_name")
    # The options that an evaluation takes from the evaluated run with another text, too.
    model_options: ClassVar[set[str]] = {"block_size"}

    train_file: list[str] | None = optional("UTF-8 text files to train on. Default: English text of Python's help.")
    validation_file: list[str] | None = optional("Text files for validation. Default: a part of the training text.")
    test_file: list[str] | None = optional("Text files for the final evaluation. Default: none.")
    dataset_name: str | None = optional("Dataset instead of text files: a name on the Hub or a folder.")
    dataset_config: str | None = optional("Configuration of `--dataset_name`, if it has several.")
    text_column: str = HfArg(default="text", help="Column of `--dataset_name` that holds the text.")
    streaming: bool = HfArg(default=False, help="Read the training text while training. Needs `--max_steps`.")
    shuffle_buffer: int = HfArg(default=0, help="Rows in the shuffle buffer of `--streaming`; 0 keeps the order.")
    validation_percentage: float = HfArg(default=5.0, help="Percentage of the training text to hold out by default.")
    tokenizer: str | None = None
    vocab_size: int | None = optional("Maximum vocabulary of a new tokenizer. Default: all words, or the preset's.")
    block_size: int | None = optional("Tokens per block. Default: the preset's; of a checkpoint, all, up to 1024.")
    num_workers: int | None = optional("Processes for tokenization. Default: one per core.")

    def __post_init__(self):
        self.check_at_least(1, "vocab_size", "num_workers")
        self.check_at_least(2, "block_size")
        if self.dataset_name and (self.train_file or self.validation_file or self.test_file):
            raise InputError("`--dataset_name` cannot be combined with text files: give only one of them.")
        if not 0 < self.validation_percentage < 100:
            raise InputError(f"`--validation_percentage` must be between 0 and 100, got {self.validation_percentage}.")

    @property
    def names_text(self) -> bool:
        """Whether an option names a text."""
        return any(getattr(self, name) for name in self.sources)


@dataclass
class RunTrainingArguments(TrainingArguments):
    """Trainer's options, with defaults for a complete run: evaluate and save every epoch, keep the best checkpoint."""

    output_dir: str | None = optional(
        "Folder of the run, which the same command resumes. With `--do_train false`, of the results; else the model's."
    )
    do_train: bool = HfArg(default=True, help="With `false`, `--model_name_or_path` is only evaluated.")
    eval_strategy: str = HfArg(default="epoch", help="When to evaluate: `epoch`, `steps` or `no`.")
    save_strategy: str | None = optional("When to save a checkpoint. Default: as `--eval_strategy`.")
    save_steps: float | None = optional("Steps between checkpoints. Default: as `--eval_steps`.")
    save_total_limit: int | None = HfArg(default=2, help="Number of checkpoints to keep.")
    load_best_model_at_end: bool = HfArg(default=True, help="Keep the best checkpoint instead of the last one.")
    metric_for_best_model: str | None = optional(
        "Metric that selects the best checkpoint, as in the log. Default: that of what the trained model is used with."
    )
    logging_steps: float = HfArg(default=50, help="Log the losses every this many steps.")
    # A loss that is not finite must show.
    logging_nan_inf_filter: bool = False
    # The patience counter survives an interruption.
    restore_callback_states_from_checkpoint: bool = True
    # Every weight is used in every step.
    ddp_find_unused_parameters: bool | None = False
    # Rows carry fields that no backbone has as an argument.
    remove_unused_columns: bool | None = False

    def __post_init__(self):
        has_accelerator = torch.accelerator.is_available()
        self.dataloader_pin_memory = self.dataloader_pin_memory and has_accelerator
        # Without a GPU, Trainer needs `use_cpu` to connect several processes.
        self.use_cpu = self.use_cpu or not has_accelerator
        self.save_strategy = self.save_strategy or self.eval_strategy
        self.save_steps = self.save_steps or self.eval_steps or self.logging_steps
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
        # Trainer sets a default.
        self.requested_metric = (self.metric_for_best_model or "").removeprefix("eval_") or None
        super().__post_init__()
        if self.label_smoothing_factor:
            raise InputError("`--label_smoothing_factor` would train without the heads: use `--label_smoothing`.")
        if self.n_gpu > 1:
            raise InputError("Several GPUs need one process each: use `accelerate launch`, or CUDA_VISIBLE_DEVICES=0.")
        if self.push_to_hub and not self.do_train:
            raise InputError("`--push_to_hub` needs a trained run: remove `--do_train false`.")

    def select_by(self, default_metric: str) -> None:
        """Select the best checkpoint by `--metric_for_best_model`, else by `default_metric`."""
        self.metric_for_best_model = self.requested_metric or default_metric
        # Trainer would maximize every metric whose name does not end in `loss`.
        self.greater_is_better = not self.metric_for_best_model.endswith(("loss", "perplexity"))
