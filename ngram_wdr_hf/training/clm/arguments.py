"""Options of `train_clm.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ..common.arguments import (
    GenerativeModelArguments,
    GenerativeReportArguments,
    RunArguments,
    RunTrainingArguments,
    output_dir_field,
    preset_field,
)
from ..common.checks import POSITIVE, check_at_least, check_number
from ..common.command_line import parse_arguments
from ..common.presets import Preset
from ..common.text_arguments import TextDataArguments
from .presets import CLM_PRESETS

OWN_TEXT_TEMPERATURE, OWN_TEXT_BATCH_SIZE = 0.7, 32


@dataclass
class ClmDataArguments(TextDataArguments):
    """Options for the text, its tokenizer, and the evaluation windows over it."""

    data_options: ClassVar[tuple[str, ...]] = (*TextDataArguments.data_options, "self_generated", "prompt_file")

    tokenizer: str | None = HfArg(
        default=None,
        help="`word`: the words of the training text, split at white space, with <unk> and an <eos> per line, as is "
        "usual for PTB and WikiText; `bpe`: byte-level BPE, trained on the text; otherwise a pretrained tokenizer's "
        "name or folder. Default: the checkpoint's with `--model_name_or_path`, `bpe` for Python's English, else "
        "`word`.",
    )
    self_generated: int | None = HfArg(
        default=None,
        help="Let the checkpoint write this many tokens of training text itself, from the prompts of `--prompt_file` "
        "or from its start token. Heads that draft learn best from the model's own text. With `--train_file` or "
        "`--dataset_name`, they are trained on both.",
    )
    prompt_file: list[str] | None = HfArg(
        default=None,
        help="Text files with a prompt per line for `--self_generated`. With a chat template, each is a message of "
        "the user. Default: the start token.",
    )
    self_generated_temperature: float | None = HfArg(
        default=None,
        help=f"Temperature of sampling for `--self_generated`; 0 is greedy search. Default: {OWN_TEXT_TEMPERATURE}.",
    )
    self_generated_batch_size: int | None = HfArg(
        default=None,
        help="Number of rows that are written at the same time for `--self_generated`. Default: "
        f"{OWN_TEXT_BATCH_SIZE}.",
    )
    stride: int | None = HfArg(
        default=None,
        help="Step of the sliding evaluation window, in tokens. A smaller step gives tokens more context and takes "
        "longer. Default: the block size.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("stride", self.stride, 1)
        check_at_least("self_generated", self.self_generated, 1)
        check_at_least("self_generated_temperature", self.self_generated_temperature, 0)
        check_at_least("self_generated_batch_size", self.self_generated_batch_size, 1)
        if self.prompt_file and self.self_generated is None:
            raise InputError("`--prompt_file` needs `--self_generated TOKENS`: say how much text to write.")


@dataclass
class ClmModelArguments(GenerativeModelArguments):
    """Options for the model: a new one by preset, or any causal language model."""

    presets: ClassVar[dict[str, Preset]] = CLM_PRESETS

    preset: str | None = preset_field(CLM_PRESETS)
    cache_hidden_states: bool = HfArg(
        default=False,
        help="With `--train_mode heads`, compute the hidden states of the training text once and keep them in "
        "`--output_dir`. The heads then learn the model's own most likely tokens instead of the text's.",
    )
    cache_limit: float = HfArg(default=20.0, help="Maximum size of `--cache_hidden_states`, in gigabytes.")

    def __post_init__(self):
        super().__post_init__()
        check_number("cache_limit", self.cache_limit, POSITIVE)
        if self.cache_hidden_states and self.train_mode != "heads":
            raise InputError(
                "`--cache_hidden_states` needs a model that does not change: set `--train_mode heads`, or remove it."
            )


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


def check_clm_arguments(arguments: RunArguments) -> None:
    """Raise an `InputError` for options of language modeling runs that do not go together."""
    data = arguments.data
    if data.self_generated is None:
        return
    if arguments.model.model_name_or_path is None:
        raise InputError("`--self_generated` needs a model that can write: set `--model_name_or_path`.")
    if data.streaming:
        raise InputError("`--self_generated` cannot be mixed with a streamed text: remove `--streaming`.")
