"""Options of `train_clm.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transformers.hf_argparser import HfArg

from ..common.arguments import (
    GenerativeModelArguments,
    GenerativeReportArguments,
    RunArguments,
    RunTrainingArguments,
    output_dir_field,
    preset_field,
)
from ..common.checks import check_at_least
from ..common.command_line import parse_arguments
from ..common.presets import Preset
from ..common.text_arguments import TextDataArguments
from .presets import CLM_PRESETS


@dataclass
class ClmDataArguments(TextDataArguments):
    """Options for the text, its tokenizer, and the evaluation windows over it."""

    tokenizer: str | None = HfArg(
        default=None,
        help="`word`: the words of the training text, split at white space, with <unk> and an <eos> per line, as is "
        "usual for PTB and WikiText; `bpe`: byte-level BPE, trained on the text; otherwise a pretrained tokenizer's "
        "name or folder. Default: the checkpoint's with `--model_name_or_path`, `bpe` for Python's English, else "
        "`word`.",
    )
    stride: int | None = HfArg(
        default=None,
        help="Step of the sliding evaluation window, in tokens. A smaller step gives tokens more context and takes "
        "longer. Default: the block size.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("stride", self.stride, 1)


@dataclass
class ClmModelArguments(GenerativeModelArguments):
    """Options for the model: a new one by preset, or any causal language model."""

    presets: ClassVar[dict[str, Preset]] = CLM_PRESETS

    preset: str | None = preset_field(CLM_PRESETS)


@dataclass
class ClmReportArguments(GenerativeReportArguments):
    """Options for evaluation and reports, with those for the sample text."""

    prompt: str | None = HfArg(
        default=None, help="Prompt of the sample texts. Default: the first 16 tokens of the validation text."
    )
    sample_tokens: int = HfArg(
        default=60,
        help="Maximum number of tokens to generate as sample text after training, without and with the ensemble; 0 "
        "generates none.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("sample_tokens", self.sample_tokens, 0)


@dataclass
class ClmTrainingArguments(RunTrainingArguments):
    """Options for training: those of `RunTrainingArguments`, with a default folder."""

    output_dir: str | None = output_dir_field("runs/clm")


def parse_clm_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """
    Parse the command line of `train_clm.py`: options, with or without a YAML file before them. Raise an `InputError`
    for unknown options and bad values. `description` heads the text of `--help`.
    """
    classes = (ClmDataArguments, ClmModelArguments, ClmReportArguments, ClmTrainingArguments)
    return parse_arguments(classes, arguments, description)
