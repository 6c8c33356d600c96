"""The options of `finetune_glue.py`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ...data.glue import GLUE_TASKS, glue_task
from ..common.arguments import (
    RunArguments,
    RunTrainingArguments,
    check_at_least,
    output_dir_field,
)
from ..common.command_line import parse_arguments
from ..common.presets import Preset


@dataclass
class GlueDataArguments:
    """Which tasks, and where their examples are."""

    task: list[str] | None = HfArg(
        default=None, help=f"One or several of {', '.join(GLUE_TASKS)}; case and hyphens do not matter."
    )
    train_file: str | None = HfArg(
        default=None, help="Of one task: its training examples, a file in GLUE's own form (train.tsv)."
    )
    validation_file: str | None = HfArg(
        default=None, help="Of one task: what it is evaluated on, in GLUE's own form (dev.tsv)."
    )
    data_dir: str | None = HfArg(
        default=None, help="Instead of files: a folder with SST-2, CoLA and RTE, each with train.tsv and dev.tsv."
    )
    dataset_name: str | None = HfArg(
        default=None,
        help="Instead of files: a dataset's name on the Hub, as `glue`, or a folder, with a configuration for "
        "each task.",
    )
    max_length: int | None = HfArg(
        default=None, help="Cut texts to so many tokens. Default: 128, or what the model can see if that is less."
    )

    def __post_init__(self):
        if not self.task:
            raise InputError(f"Say what to learn with `--task`: {', '.join(GLUE_TASKS)}, one or several.")
        self.task = list(dict.fromkeys(glue_task(name).name for name in self.task))
        files = (self.train_file, self.validation_file)
        if [any(files), self.data_dir is not None, self.dataset_name is not None].count(True) != 1:
            raise InputError(
                "Say where the examples are: either `--train_file` and `--validation_file`, or `--data_dir`, or "
                "`--dataset_name`."
            )
        if any(files) and (not all(files) or len(self.task) > 1):
            raise InputError("One `--task` has a `--train_file` and a `--validation_file`; several have `--data_dir`.")
        # Room for a few tokens besides the special ones.
        check_at_least("max_length", self.max_length, 8)


@dataclass
class GlueModelArguments:
    """Which model."""

    # Only checkpoints are fine-tuned.
    presets: ClassVar[dict[str, Preset]] = {}
    preset: ClassVar[None] = None

    model_name_or_path: str | None = HfArg(
        default=None, help="The checkpoint to fine-tune, with its tokenizer: plain or one of ours, a folder or a name."
    )

    def __post_init__(self):
        if self.model_name_or_path is None:
            raise InputError("Say what to fine-tune with `--model_name_or_path`: a checkpoint with its tokenizer.")


@dataclass
class GlueReportArguments:
    """What is repeated and shown."""

    seeds: list[int] | None = HfArg(
        default=None, help="Repeat each task with these seeds, and report their mean and deviation. Default: `--seed`."
    )

    def __post_init__(self):
        self.seeds = list(dict.fromkeys(self.seeds)) if self.seeds else None


@dataclass
class GlueTrainingArguments(RunTrainingArguments):
    """Trainer's own options, with the recipe of Cramming (hf.co/papers/2212.14034) for its defaults."""

    output_dir: str | None = output_dir_field("runs/glue")
    num_train_epochs: float = HfArg(default=5.0, help="How often to read the training examples.")
    learning_rate: float = HfArg(default=4e-5, help="The highest rate.")
    lr_scheduler_type: str = HfArg(default="cosine", help="How the rate falls.")
    warmup_steps: float = HfArg(
        default=0.1, help="So many steps, or as a fraction so much of all, until the highest rate."
    )
    per_device_train_batch_size: int = HfArg(default=16, help="Examples at a time.")
    per_device_eval_batch_size: int = HfArg(default=64, help="The same, in evaluation.")
    train_sampling_strategy: str | None = field(
        default=None,
        metadata={
            "help": "Default: `group_by_length`, texts of similar length together, which takes half the time; with "
            "several processes, `random`.",
            "choices": TrainingArguments.__dataclass_fields__["train_sampling_strategy"].metadata["choices"],
        },
    )
    logging_strategy: str = HfArg(default="epoch", help="When to log the loss.")
    save_total_limit: int | None = HfArg(default=1, help="How many checkpoints to keep, to go on from.")
    load_best_model_at_end: bool = HfArg(
        default=False, help="Save the best epoch's model, not the last's. Both are reported anyway."
    )

    def __post_init__(self):
        refused = {
            "--do_train false": not self.do_train,
            "--eval_strategy": self.eval_strategy != "epoch",
            "--metric_for_best_model": self.metric_for_best_model is not None,
            "--push_to_hub": self.push_to_hub,
            "--resume_from_checkpoint": self.resume_from_checkpoint is not None,
        }
        for option in [option for option, is_given in refused.items() if is_given]:
            raise InputError(
                f"Leave out `{option}`: each run trains, is evaluated after every epoch by GLUE's metric, and goes on "
                "from its own last checkpoint."
            )
        asked = self.train_sampling_strategy
        self.train_sampling_strategy = asked or "random"
        super().__post_init__()
        # Each process would group the texts in its own order: some would be read twice, others never.
        if self.world_size > 1 and asked == "group_by_length":
            raise InputError("With several processes, texts cannot be grouped: leave out `--train_sampling_strategy`.")
        if self.world_size == 1 and asked is None:
            self.train_sampling_strategy = "group_by_length"


def parse_glue_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """The options of `finetune_glue.py` from its command line, `[FILE.yaml] [--option value ...]`."""
    classes = (GlueDataArguments, GlueModelArguments, GlueReportArguments, GlueTrainingArguments)
    return parse_arguments(classes, arguments, description)
