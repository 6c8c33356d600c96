"""Options of `ngram-wdr glue`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ...data.glue import GLUE_TASKS, glue_task
from ..common.arguments import RunArguments, RunTrainingArguments
from ..common.checks import SEED, check_at_least, check_number
from ..common.command_line import parse_arguments
from ..common.presets import Preset

# Options that have one possible value here.
FIXED_OPTIONS = ("do_train", "eval_strategy", "metric_for_best_model", "push_to_hub")


@dataclass
class GlueDataArguments:
    """Options for the tasks and their examples: GLUE's files or a dataset."""

    task: list[str] | None = HfArg(
        default=None,
        help=f"Tasks to fine-tune on: one or more of {', '.join(GLUE_TASKS)}. Case and hyphens are ignored. Required.",
    )
    train_file: str | None = HfArg(
        default=None,
        help="Training examples of a single task, in GLUE's file format (train.tsv); needs `--validation_file`.",
    )
    validation_file: str | None = HfArg(
        default=None,
        help="Validation examples of a single task, in GLUE's file format (dev.tsv); needs `--train_file`.",
    )
    data_dir: str | None = HfArg(
        default=None,
        help="Folder with a subfolder for each task (SST-2, CoLA, RTE) with train.tsv and dev.tsv; instead of "
        "`--train_file` and `--validation_file`.",
    )
    dataset_name: str | None = HfArg(
        default=None,
        help="Dataset instead of files, with a configuration per task: a name on the Hub, such as `glue`, or a "
        "folder. For a single task, it need not have configurations.",
    )
    max_length: int | None = HfArg(
        default=None,
        help="Truncate examples to this many tokens. Default: 128, or the model's maximum if that is less.",
    )

    def __post_init__(self):
        if not self.task:
            raise InputError(f"`--task` is required: choose one or more of {', '.join(GLUE_TASKS)}.")
        self.task = list(dict.fromkeys(glue_task(name).name for name in self.task))
        files = (self.train_file, self.validation_file)
        if [any(files), self.data_dir is not None, self.dataset_name is not None].count(True) != 1:
            raise InputError(
                "`--data_dir`, `--dataset_name`, or `--train_file` with `--validation_file` is required: give exactly "
                "one of these."
            )
        if any(files) and (not all(files) or len(self.task) > 1):
            raise InputError(
                "`--train_file` and `--validation_file` must be given together, for one `--task`: give both, or use "
                "`--data_dir` for several tasks."
            )
        # Leaves room for text besides the special tokens.
        check_at_least("max_length", self.max_length, 8)


@dataclass
class GlueModelArguments:
    """Options for the model: the checkpoint to fine-tune."""

    # Only checkpoints are fine-tuned.
    presets: ClassVar[dict[str, Preset]] = {}
    preset: ClassVar[None] = None

    model_name_or_path: str | None = HfArg(
        default=None,
        help="Checkpoint to fine-tune, with its tokenizer, with or without N-gram heads: a folder or a name on the "
        "Hub. Required.",
    )

    def __post_init__(self):
        if self.model_name_or_path is None:
            raise InputError("`--model_name_or_path` is required: give a checkpoint with its tokenizer.")


@dataclass
class GlueReportArguments:
    """Options for repetitions of a run with several seeds."""

    seeds: list[int] | None = HfArg(
        default=None, help="Fine-tune once per seed, and report mean and standard deviation. Default: only `--seed`."
    )

    def __post_init__(self):
        for seed in self.seeds or ():
            check_number("seeds", seed, SEED)
        self.seeds = list(dict.fromkeys(self.seeds)) if self.seeds else None


@dataclass
class GlueTrainingArguments(RunTrainingArguments):
    """
    Trainer's options, with defaults from the recipe of Cramming (hf.co/papers/2212.14034). Some options are refused:
    each run trains, evaluates after every epoch, and resumes by itself.
    """

    output_dir: str | None = HfArg(
        default="runs/glue",
        help="Folder of the runs, one subfolder per task and seed: new, empty, or of runs with the same settings. "
        "Repeat the command to resume interrupted runs, or with a greater `--max_steps` or `--num_train_epochs` to "
        "train finished ones further.",
    )
    num_train_epochs: float = HfArg(default=5.0, help="Number of epochs.")
    learning_rate: float = HfArg(default=4e-5, help="Peak learning rate.")
    lr_scheduler_type: str = HfArg(
        default="cosine", help="Learning rate schedule, such as `cosine`, `linear` or `constant`."
    )
    warmup_steps: float = HfArg(default=0.1, help="Warmup steps; a value below 1 is a share of all steps.")
    per_device_train_batch_size: int = HfArg(default=16, help="Examples per batch and process.")
    per_device_eval_batch_size: int = HfArg(default=64, help="Examples per batch and process in evaluation.")
    train_sampling_strategy: str | None = field(
        default=None,
        metadata={
            "help": "Order of the training examples. Default: `group_by_length`, which batches texts of similar "
            "length and takes half the time; with several processes, `random`.",
            "choices": TrainingArguments.__dataclass_fields__["train_sampling_strategy"].metadata["choices"],
        },
    )
    logging_strategy: str = HfArg(default="epoch", help="When to log the training loss: `epoch`, `steps` or `no`.")
    save_total_limit: int | None = HfArg(
        default=1,
        help="Number of checkpoints to keep per run; while training, at least the last, to resume from, and with "
        "`--load_best_model_at_end` the best. 0 keeps all.",
    )
    load_best_model_at_end: bool = HfArg(
        default=False,
        help="Save the model of the epoch with the best validation metric instead of the last. The report shows the "
        "scores of both.",
    )

    def __post_init__(self):
        unsupported = {
            "--do_train false": not self.do_train,
            "--eval_strategy": self.eval_strategy != "epoch",
            "--push_to_hub": self.push_to_hub,
            "--resume_from_checkpoint": self.resume_from_checkpoint is not None,
        }
        for option in [option for option, is_given in unsupported.items() if is_given]:
            raise InputError(
                f"`{option}` is not supported, as each run trains, evaluates GLUE's metric after every epoch, and "
                "resumes from its own last checkpoint: remove the option."
            )
        requested = self.train_sampling_strategy
        self.train_sampling_strategy = requested or "random"
        super().__post_init__()
        # Each process would group in its own order, so that some examples are read twice and others never.
        if self.world_size > 1 and requested == "group_by_length":
            raise InputError(
                "`--train_sampling_strategy group_by_length` needs a single process: remove the option, or train with "
                "one process."
            )
        if self.world_size == 1 and requested is None:
            self.train_sampling_strategy = "group_by_length"


def parse_glue_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """
    Parse the command line of `ngram-wdr glue`: options, with or without a YAML file before them. Raise an
    `InputError` for unknown options and bad values. `description` heads the text of `--help`.
    """
    classes = (GlueDataArguments, GlueModelArguments, GlueReportArguments, GlueTrainingArguments)
    return parse_arguments(classes, arguments, description, "ngram-wdr glue", FIXED_OPTIONS)
