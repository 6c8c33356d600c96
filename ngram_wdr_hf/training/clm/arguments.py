"""Options of `ngram-wdr clm`."""

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
)
from ..common.checks import POSITIVE, check_at_least, check_number
from ..common.command_line import parse_arguments
from ..common.option_fields import output_dir_field, preset_field
from ..common.own_text_arguments import batch_size_field, check_not_sharded, check_own_text, temperature_field
from ..common.presets import Preset
from ..common.text_arguments import TextDataArguments
from .presets import CLM_PRESETS

OWN_TEXT_TEMPERATURE = 0.7


@dataclass
class ClmDataArguments(TextDataArguments):
    """Options for the text, its tokenizer, and the evaluation windows over it."""

    data_options: ClassVar[tuple[str, ...]] = (*TextDataArguments.data_options, "self_generated", "prompt_file")
    model_options: ClassVar[tuple[str, ...]] = (*TextDataArguments.model_options, "stride")

    tokenizer: str | None = HfArg(
        default=None,
        help="`word`: the words of the training text, split at white space, with <unk> and an <eos> per line, as is "
        "usual for PTB and WikiText; `bpe`: byte-level BPE, trained on the text; otherwise a pretrained tokenizer's "
        "name or folder. Default: the checkpoint's with `--model_name_or_path`, `bpe` for the built-in text, else "
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
    self_generated_temperature: float | None = temperature_field(OWN_TEXT_TEMPERATURE)
    self_generated_batch_size: int | None = batch_size_field()
    stride: int | None = HfArg(
        default=None,
        help="Step of the sliding evaluation window, in tokens. A smaller step gives tokens more context and takes "
        "longer. Default: the block size; in evaluation, as in the run's training.",
    )

    @property
    def validates_on_own_text(self) -> bool:
        """Whether the validation text is the model's own: if it writes its training text, and there is no other."""
        return self.self_generated is not None and not self.is_given()

    def __post_init__(self):
        super().__post_init__()
        check_at_least("stride", self.stride, 1)
        check_own_text(self)
        if self.prompt_file and self.self_generated is None:
            raise InputError("`--prompt_file` needs `--self_generated TOKENS`: say how much text to write.")


@dataclass
class ClmModelArguments(GenerativeModelArguments):
    """Options for the model: a new one by preset, or any causal language model, with the cache of hidden states."""

    presets: ClassVar[dict[str, Preset]] = CLM_PRESETS
    model_kind: ClassVar[str] = "causal"

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
    Parse the command line of `ngram-wdr clm`: options, with or without a YAML file before them. Raise an `InputError`
    for unknown options and bad values. `description` heads the text of `--help`.
    """
    classes = (ClmDataArguments, ClmModelArguments, ClmReportArguments, ClmTrainingArguments)
    return parse_arguments(classes, arguments, description, "ngram-wdr clm")


def check_clm_arguments(arguments: RunArguments) -> None:
    """Raise an `InputError` for options of language modeling runs that do not go together."""
    data = arguments.data
    check_not_sharded(arguments)
    if data.streaming and arguments.model.cache_hidden_states:
        raise InputError("`--cache_hidden_states` cannot keep a streamed text: remove `--streaming`.")
    if data.self_generated is None:
        return
    if arguments.model.model_name_or_path is None:
        raise InputError("`--self_generated` needs a model that can write: set `--model_name_or_path`.")
    if data.streaming:
        raise InputError("`--self_generated` cannot be mixed with a streamed text: remove `--streaming`.")
