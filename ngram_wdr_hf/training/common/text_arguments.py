"""The options about running text, shared by causal and masked language models."""

from dataclasses import dataclass
from typing import ClassVar

from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ...data.text import HELD_OUT_ROWS
from .arguments import RunArguments, check_at_least


@dataclass
class TextDataArguments:
    """Which text, and how it is cut into tokens."""

    # The options that choose the text.
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
    # The options that belong to the model.
    of_the_model: ClassVar[tuple[str, ...]] = ()

    train_file: list[str] | None = HfArg(
        default=None, help="Text files to train on. Without any data option: English from Python itself."
    )
    validation_file: list[str] | None = HfArg(
        default=None, help="Text files for early stopping, the best checkpoint and the best λ."
    )
    test_file: list[str] | None = HfArg(default=None, help="Text files for the final figures.")
    dataset_name: str | None = HfArg(default=None, help="Instead of files: a dataset's name on the Hub, or a folder.")
    dataset_config: str | None = HfArg(default=None, help="The dataset's configuration, if it has many.")
    text_column: str = HfArg(default="text", help="The dataset's column with the text.")
    streaming: bool = HfArg(
        default=False, help="Read the training text as it comes, for text that does not fit; needs `--max_steps`."
    )
    shuffle_buffer: int = HfArg(
        default=0, help="With `--streaming`, shuffle rows within a buffer of so many; 0 keeps the order."
    )
    validation_percentage: float = HfArg(
        default=5.0,
        help="Without a validation text, so much of the training text is held out for it; of a streamed text, "
        f"the first {HELD_OUT_ROWS:,} rows.",
    )
    tokenizer: str | None = None
    vocab_size: int | None = HfArg(
        default=None, help="Size of a trained tokenizer. Default: every word; for subwords the preset's."
    )
    block_size: int | None = HfArg(
        default=None,
        help="How many tokens the model sees at a time. Default: the preset's; of a checkpoint, as many as it "
        "can see, up to 1024.",
    )
    num_workers: int | None = HfArg(default=None, help="Processes that tokenize. Default: one for each core.")

    def __post_init__(self):
        if self.dataset_name and (self.train_file or self.validation_file or self.test_file):
            raise InputError("Give either `--dataset_name` or text files, not both.")
        for name in ("vocab_size", "block_size", "num_workers"):
            check_at_least(name, getattr(self, name), 2 if name == "block_size" else 1)

    def is_given(self) -> bool:
        """Whether a text was named."""
        return bool(self.dataset_name or self.train_file or self.validation_file or self.test_file)


def check_streaming(arguments: RunArguments) -> None:
    """Check what a streamed text needs."""
    data, training = arguments.data, arguments.training
    if data.streaming and training.do_train and training.max_steps <= 0:
        raise InputError("A streamed text has no known length: set `--max_steps`.")
    if data.streaming and training.do_train and training.eval_strategy == "epoch":
        raise InputError(
            "A streamed text may be too long for an epoch: set `--eval_strategy steps` and `--eval_steps`."
        )
