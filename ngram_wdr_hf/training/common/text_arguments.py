"""Options for running text, shared by causal and masked language models."""

from dataclasses import dataclass
from typing import ClassVar

from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ...data.text import HELD_OUT_ROWS
from .arguments import RunArguments
from .checks import PERCENTAGE, check_at_least, check_number


@dataclass
class TextDataArguments:
    """
    Options for the text (files or a dataset), its tokenizer and its blocks, shared by causal and masked language
    models.
    """

    # Whether the model itself writes the validation text. Overridden for models that can write.
    validates_on_own_text: ClassVar[bool] = False
    file_options: ClassVar[tuple[str, ...]] = ("train_file", "validation_file", "test_file")
    # Options that select the text. An evaluation without any of them takes over those of the evaluated run.
    data_options: ClassVar[tuple[str, ...]] = (
        *file_options,
        "dataset_name",
        "dataset_config",
        "text_column",
        "streaming",
        "validation_percentage",
    )
    # Data options that an evaluation takes over from its run even with another text.
    model_options: ClassVar[tuple[str, ...]] = ("block_size",)

    train_file: list[str] | None = HfArg(
        default=None,
        help="UTF-8 text files to train on. Default, without any data option: English text that ships with Python "
        "(docstrings and help texts).",
    )
    validation_file: list[str] | None = HfArg(
        default=None,
        help="Text files to select the best checkpoint and λ on, and for early stopping. Default: a part of the "
        "training text, see `--validation_percentage`.",
    )
    test_file: list[str] | None = HfArg(default=None, help="Text files for the final evaluation. Default: none.")
    dataset_name: str | None = HfArg(
        default=None,
        help="Dataset instead of text files: a name on the Hub or a folder. Its splits `train`, `validation` and "
        "`test` are used.",
    )
    dataset_config: str | None = HfArg(
        default=None, help="Configuration of `--dataset_name`, if it has several. Default: its only one."
    )
    text_column: str = HfArg(default="text", help="Column of `--dataset_name` that holds the text.")
    streaming: bool = HfArg(
        default=False,
        help="Stream the training text instead of loading it, for large datasets; needs `--max_steps` and "
        "`--eval_strategy steps`.",
    )
    shuffle_buffer: int = HfArg(
        default=0,
        help="Number of rows in the shuffle buffer of `--streaming`; 0 keeps the order. Ignored without streaming.",
    )
    validation_percentage: float = HfArg(
        default=5.0,
        help="Percentage of the training text to hold out if there is no validation text; of streamed text, "
        f"the first {HELD_OUT_ROWS:,} rows are held out instead.",
    )
    tokenizer: str | None = None
    vocab_size: int | None = HfArg(
        default=None,
        help="Maximum vocabulary size of a tokenizer trained on the text; ignored for a pretrained one. Default: all "
        "words; for subwords, the preset's.",
    )
    block_size: int | None = HfArg(
        default=None,
        help="Number of tokens per block, the model's context. Default: the preset's; for a checkpoint, its maximum, "
        "up to 1024; in evaluation, as in the run's training.",
    )
    num_workers: int | None = HfArg(
        default=None,
        help="Number of processes for tokenization; short texts (less than 1,000 rows per process) take one. Default: "
        "one per core.",
    )

    def __post_init__(self):
        if self.dataset_name and (self.train_file or self.validation_file or self.test_file):
            raise InputError(
                "`--dataset_name` cannot be combined with text files (`--train_file`, `--validation_file`, "
                "`--test_file`): give only one of them."
            )
        for name in ("vocab_size", "block_size", "num_workers"):
            check_at_least(name, getattr(self, name), 2 if name == "block_size" else 1)
        check_at_least("shuffle_buffer", self.shuffle_buffer, 0)
        check_number("validation_percentage", self.validation_percentage, PERCENTAGE)

    def is_given(self) -> bool:
        """Return whether any option names a text: a file or a dataset."""
        return bool(self.dataset_name or any(getattr(self, name) for name in self.file_options))


def check_text_options(arguments: RunArguments) -> None:
    """
    Raise an `InputError` if N does not fit into a block, or if a streamed training text has no `--max_steps`, would be
    evaluated, saved or logged by epoch, or be read by several workers.
    """
    data, training = arguments.data, arguments.training
    if data.block_size is not None:
        check_heads_fit(data.block_size, arguments.model.ngram_size or 1)
    if not (data.streaming and training.do_train):
        return
    if training.max_steps <= 0:
        raise InputError("`--streaming` gives a text of unknown length: set `--max_steps`.")
    for name in ("eval", "save", "logging"):
        if getattr(training, f"{name}_strategy") == "epoch":
            raise InputError(f"`--streaming` has no epochs: set `--{name}_strategy steps` and `--{name}_steps`.")
    if training.dataloader_num_workers > 1:
        # `datasets` gives each worker files of its own, and each of them holds out rows of its own.
        raise InputError(
            "`--streaming` reads the text in order, in one process: set `--dataloader_num_workers` to 0 or 1."
        )


def check_heads_fit(block_size: int, ngram_size: int) -> None:
    """Raise an `InputError` if a block is too short for the last head to have a target in it."""
    if block_size <= ngram_size:
        raise InputError(
            f"`--block_size` must be greater than N = {ngram_size}, got {block_size}: raise it, or choose a smaller "
            "`--ngram_size`."
        )
