"""Options of `ngram-wdr nmt`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ..common.arguments import (
    GenerativeModelArguments,
    GenerativeReportArguments,
    RunArguments,
    RunTrainingArguments,
    uses_fsdp,
)
from ..common.checks import PERCENTAGE, Range, check_at_least, check_number, check_output_file
from ..common.command_line import parse_arguments
from ..common.option_fields import output_dir_field, overrides_help, preset_field
from ..common.presets import Preset
from .presets import NMT_PRESETS

# Choices for `--metric_for_best_model` that need translations of the validation set.
DECODED_METRICS = ("bleu", "chrf")
SPLIT_FILES = ("train_file", "validation_file", "test_file")
SPLIT_PAIRS = tuple(f"{split}_{side}" for split in ("train", "validation", "test") for side in ("source", "target"))


@dataclass
class NmtDataArguments:
    """Options for the sentence pairs, their tokenizer and batches."""

    # The validation set has references.
    validates_on_own_text: ClassVar[bool] = False
    file_options: ClassVar[tuple[str, ...]] = (*SPLIT_PAIRS, *SPLIT_FILES)
    # Options that select the pairs. An evaluation without any of them takes over those of the evaluated run.
    data_options: ClassVar[tuple[str, ...]] = (
        *file_options,
        "dataset_name",
        "dataset_config",
        "source_lang",
        "target_lang",
        "reverse",
        "validation_percentage",
    )
    # Data options that an evaluation takes over from its run even with other pairs.
    model_options: ClassVar[tuple[str, ...]] = ("source_prefix",)

    train_source: list[str] | None = HfArg(
        default=None,
        help="Text files with source sentences to train on, one per line. Default, without any data option: English "
        "and German dates, amounts and names, from Unicode's locale data.",
    )
    train_target: list[str] | None = HfArg(
        default=None,
        help="Text files with the translations of `--train_source`, with as many lines.",
    )
    validation_source: list[str] | None = HfArg(
        default=None,
        help="Text files with source sentences to select the best checkpoint and λ on, and for early stopping. "
        "Default: a part of the training pairs, see `--validation_percentage`.",
    )
    validation_target: list[str] | None = HfArg(
        default=None, help="Text files with the translations of `--validation_source`, with as many lines."
    )
    test_source: list[str] | None = HfArg(
        default=None, help="Text files with source sentences for the final evaluation. Default: none."
    )
    test_target: list[str] | None = HfArg(
        default=None,
        help="Text files with the translations of `--test_source`. Without them, the test set is translated but not "
        "scored.",
    )
    train_file: list[str] | None = HfArg(
        default=None,
        help='JSON lines to train on, instead of text files: `{"en": ..., "de": ...}`, at the top level or in a field '
        "`translation`.",
    )
    validation_file: list[str] | None = HfArg(
        default=None, help="JSON lines for validation, as `--train_file`. Default: a part of the training pairs."
    )
    test_file: list[str] | None = HfArg(
        default=None, help="JSON lines for the final evaluation, as `--train_file`. Default: none."
    )
    dataset_name: str | None = HfArg(
        default=None,
        help="Translation dataset instead of files: a name on the Hub or a folder. Its splits `train`, `validation` "
        "and `test` are used.",
    )
    dataset_config: str | None = HfArg(
        default=None, help="Configuration of `--dataset_name`, if it has several. Default: its only one."
    )
    source_lang: str | None = HfArg(
        default=None,
        help="Field of the source language in JSON lines and datasets, such as `en`. Required with them; unused with "
        "text files.",
    )
    target_lang: str | None = HfArg(
        default=None,
        help="Field of the target language in JSON lines and datasets, such as `de`. Required with them; unused with "
        "text files.",
    )
    reverse: bool = HfArg(default=False, help="Swap source and target: translate the other way.")
    source_prefix: str | None = HfArg(
        default=None,
        help="Text to put before every source sentence; T5 expects `translate English to German: `. Default: none; in "
        "evaluation, as in the run's training.",
    )
    validation_percentage: float = HfArg(
        default=2.0, help="Percentage of the training pairs to hold out if there is no validation set."
    )
    tokenizer: str | None = HfArg(
        default=None,
        help="`bpe`: one byte-level BPE for both languages, trained on the pairs; otherwise a pretrained tokenizer's "
        "name or folder. Default: the checkpoint's with `--model_name_or_path`, else `bpe`.",
    )
    vocab_size: int | None = HfArg(
        default=None, help="Maximum vocabulary size of a tokenizer trained on the pairs. Default: the preset's."
    )
    max_length: int | None = HfArg(
        default=None,
        help="Drop training pairs with more tokens than this on either side. Default: the preset's, else no limit.",
    )
    max_length_ratio: float | None = HfArg(
        default=None,
        help="Drop training pairs whose longer side exceeds this many times the shorter. Default: the "
        "preset's, else no limit.",
    )
    batch_tokens: int = HfArg(
        default=4096,
        help="Maximum number of tokens per batch and process, padding included, on the side with more tokens. In "
        "translation, the sources times the beams.",
    )
    num_workers: int | None = HfArg(
        default=None,
        help="Number of processes for tokenization; less than 1,000 pairs per process take one. Default: one per "
        "core.",
    )

    def __post_init__(self):
        sources = [self._has(SPLIT_PAIRS), self._has(SPLIT_FILES), self.dataset_name is not None]
        if sum(sources) > 1:
            raise InputError(
                "`--dataset_name`, parallel text files (`--train_source`) and JSON lines (`--train_file`) cannot be "
                "combined: give only one of them."
            )
        for name in ("vocab_size", "max_length", "batch_tokens", "num_workers"):
            check_at_least(name, getattr(self, name), 2 if name == "max_length" else 1)
        check_at_least("max_length_ratio", self.max_length_ratio, 1)
        check_number("validation_percentage", self.validation_percentage, PERCENTAGE)

    def _has(self, names: Sequence[str]) -> bool:
        return any(getattr(self, name) for name in names)

    def is_given(self) -> bool:
        """Return whether any option names sentence pairs: a file or a dataset."""
        return self.dataset_name is not None or self._has(self.file_options)


@dataclass
class NmtModelArguments(GenerativeModelArguments):
    """Options for the model: a new Marian by preset, or an encoder-decoder checkpoint such as Marian, BART or T5."""

    presets: ClassVar[dict[str, Preset]] = NMT_PRESETS
    model_kind: ClassVar[str] = "seq2seq"
    decoded_metrics: ClassVar[tuple[str, ...]] = DECODED_METRICS
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "plain": {**GenerativeModelArguments.kinds["plain"], "bow_loss_weight": 0.0},
        "bow": {**GenerativeModelArguments.kinds["plain"], "bow_loss_weight": 1.0},
        "simple": {**GenerativeModelArguments.kinds["simple"], "bow_loss_weight": 0.0},
        "wdr": {**GenerativeModelArguments.kinds["wdr"], "bow_loss_weight": 0.0},
    }

    preset: str | None = preset_field(NMT_PRESETS)
    config_overrides: list[str] | None = HfArg(default=None, help=overrides_help("encoder_layers=3 d_model=96"))
    bow_loss_weight: float | None = HfArg(
        default=None,
        help="Loss weight of the bag-of-words loss (Ma et al. 2018), a baseline of the paper. Default: the "
        "checkpoint's, else 0 (off).",
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("bow_loss_weight", self.bow_loss_weight, 0)

    @property
    def kind(self) -> str:
        kind = super().kind
        return "bow" if kind == "plain" and self.bow_loss_weight else kind


@dataclass
class NmtReportArguments(GenerativeReportArguments):
    """Options for translation and reports."""

    num_beams: int | None = HfArg(
        default=None, help="Number of beams; 1 is greedy search. Default: the checkpoint's, else 5."
    )
    length_penalty: float | None = HfArg(
        default=None,
        help="Length penalty of beam search: scores are divided by length ** penalty. Default: the checkpoint's, else "
        "1.",
    )
    num_examples: int = HfArg(
        default=5, help="Number of test sentences to show with their translations and references; 0 shows none."
    )
    translate: str | None = HfArg(
        default=None,
        help="File to translate, one sentence per line, instead of evaluating. Needs `--do_train false "
        "--model_name_or_path RUN`.",
    )
    translate_to: str | None = HfArg(
        default=None, help="Output file of `--translate`, one translation per line. Default: standard output."
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("num_beams", self.num_beams, 1)
        check_number("length_penalty", self.length_penalty, Range())
        check_at_least("num_examples", self.num_examples, 0)


@dataclass
class NmtTrainingArguments(RunTrainingArguments):
    """Options for training: those of `RunTrainingArguments`, with batches by tokens and a default folder."""

    output_dir: str | None = output_dir_field("runs/nmt")
    per_device_train_batch_size: int = HfArg(default=1, help="Must be 1: `--batch_tokens` sets the batch size.")
    per_device_eval_batch_size: int = HfArg(default=1, help="Must be 1: `--batch_tokens` sets the batch size.")

    def __post_init__(self):
        if self.per_device_train_batch_size != 1 or self.per_device_eval_batch_size != 1:
            raise InputError(
                "`--per_device_train_batch_size` and `--per_device_eval_batch_size` must be 1: set `--batch_tokens` "
                "instead."
            )
        super().__post_init__()


def parse_nmt_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """
    Parse the command line of `ngram-wdr nmt`: options, with or without a YAML file before them. Raise an `InputError`
    for unknown options and bad values. `description` heads the text of `--help`.
    """
    classes = (NmtDataArguments, NmtModelArguments, NmtReportArguments, NmtTrainingArguments)
    return parse_arguments(classes, arguments, description, "ngram-wdr nmt")


def check_nmt_arguments(arguments: RunArguments) -> None:
    """Raise an `InputError` for options of translation runs that do not go together."""
    report, training = arguments.report, arguments.training
    is_decoded = (training.metric_for_best_model or "").removeprefix("eval_") in DECODED_METRICS
    if is_decoded and uses_fsdp(training):
        raise InputError(
            "`--metric_for_best_model bleu` and `chrf` do not work with FSDP, as a sharded model cannot translate: "
            "choose another metric."
        )
    if report.translate is not None and training.do_train:
        raise InputError("`--translate` needs a trained model: set `--do_train false --model_name_or_path RUN`.")
    if report.translate_to is not None and report.translate is None:
        raise InputError("`--translate_to` needs `--translate FILE`: set the file to translate.")
    check_output_file("translate_to", report.translate_to)
