"""The options of `train_clm.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transformers.hf_argparser import HfArg

from ..common.arguments import (
    GenerativeModelArguments,
    GenerativeReportArguments,
    RunArguments,
    RunTrainingArguments,
    check_at_least,
    output_dir_field,
    preset_field,
)
from ..common.command_line import parse_arguments
from ..common.presets import Preset
from ..common.text_arguments import TextDataArguments
from .presets import CLM_PRESETS


@dataclass
class ClmDataArguments(TextDataArguments):
    """Which text, and how it is cut into tokens."""

    tokenizer: str | None = HfArg(
        default=None,
        help="`word`: whitespace-separated words of the training text, <unk>, one <eos> a line, as PTB and "
        "WikiText are scored; `bpe`: byte-level BPE trained on the text; or a pretrained tokenizer's name or "
        "folder. Default: the model's own with `--model_name_or_path`, `bpe` for Python's English, else `word`.",
    )
    stride: int | None = HfArg(
        default=None,
        help="In evaluation, how many tokens the window moves on. Smaller gives every word more context and "
        "takes longer. Default: the block size.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("stride", self.stride, 1)


@dataclass
class ClmModelArguments(GenerativeModelArguments):
    """Which model: new, by preset, or any causal language model."""

    presets: ClassVar[dict[str, Preset]] = CLM_PRESETS

    preset: str | None = preset_field(CLM_PRESETS)


@dataclass
class ClmReportArguments(GenerativeReportArguments):
    """What is evaluated and shown."""

    prompt: str | None = HfArg(default=None, help="Begin the sample text so. Default: a piece of the validation text.")
    sample_tokens: int = HfArg(default=60, help="Length of the sample text; 0 for none.")

    def __post_init__(self):
        super().__post_init__()
        check_at_least("sample_tokens", self.sample_tokens, 0)


@dataclass
class ClmTrainingArguments(RunTrainingArguments):
    """Trainer's own options."""

    output_dir: str | None = output_dir_field("runs/clm")


def parse_clm_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """The options of `train_clm.py` from its command line."""
    classes = (ClmDataArguments, ClmModelArguments, ClmReportArguments, ClmTrainingArguments)
    return parse_arguments(classes, arguments, description)
