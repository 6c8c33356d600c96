"""The options about running text, which every kind of language model is trained on."""

from dataclasses import dataclass, field
from typing import ClassVar

from ...data.errors import InputError
from ...data.text import HELD_OUT_ROWS
from .arguments import RunArguments, check_at_least


@dataclass
class TextDataArguments:
    """Which text, and how it is cut into tokens."""

    # The options that say which text it is.
    which_data: ClassVar[tuple[str, ...]] = (
        "train_file",
        "validation_file",
        "test_file",
        "dataset_name",
        "dataset_config",
        "text_column",
        "streaming",
        "validation_percentage",
    )
    # Those that say what the model is used to.
    of_the_model: ClassVar[tuple[str, ...]] = ()

    train_file: list[str] | None = field(
        default=None, metadata={"help": "Text files to train on. Without any data option: English from Python itself."}
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Text files for early stopping, the best checkpoint and the best λ."}
    )
    test_file: list[str] | None = field(default=None, metadata={"help": "Text files for the final figures."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Instead of files: a dataset's name on the Hub, or a folder."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "The dataset's configuration, if it has many."})
    text_column: str = field(default="text", metadata={"help": "The dataset's column with the text."})
    streaming: bool = field(
        default=False,
        metadata={"help": "Read the training text as it comes, for text that does not fit; needs `--max_steps`."},
    )
    shuffle_buffer: int = field(
        default=0, metadata={"help": "With `--streaming`, shuffle rows within a buffer of so many; 0 keeps the order."}
    )
    validation_percentage: float = field(
        default=5.0,
        metadata={
            "help": "Without a validation text, so much of the training text is held out for it; of a streamed text, "
            f"the first {HELD_OUT_ROWS:,} rows."
        },
    )
    tokenizer: str | None = None
    vocab_size: int | None = field(
        default=None, metadata={"help": "Size of a trained tokenizer. Default: every word; for subwords the preset's."}
    )
    block_size: int | None = field(
        default=None,
        metadata={
            "help": "How many tokens the model sees at a time. Default: the preset's; of a checkpoint, as many as it "
            "can see, up to 1024."
        },
    )
    num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize. Default: one for each core."}
    )

    def __post_init__(self):
        if self.dataset_name and (self.train_file or self.validation_file or self.test_file):
            raise InputError("Give either `--dataset_name` or text files, not both.")
        for name in ("vocab_size", "block_size", "num_workers"):
            check_at_least(name, getattr(self, name), 2 if name == "block_size" else 1)

    def is_given(self) -> bool:
        """Whether a text was named."""
        return bool(self.dataset_name or self.train_file or self.validation_file or self.test_file)


def check_streaming(arguments: RunArguments) -> None:
    """What a text that is streamed needs."""
    data, training = arguments.data, arguments.training
    if data.streaming and training.do_train and training.max_steps <= 0:
        raise InputError("A streamed text has no known length: set `--max_steps`.")
    if data.streaming and training.do_train and training.eval_strategy == "epoch":
        raise InputError(
            "A streamed text may be too long for an epoch: set `--eval_strategy steps` and `--eval_steps`."
        )
