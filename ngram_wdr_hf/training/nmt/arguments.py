"""The options of `train_nmt.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ..common.arguments import (
    GenerativeModelArguments,
    GenerativeReportArguments,
    RunArguments,
    RunTrainingArguments,
    check_at_least,
    output_dir_field,
    preset_field,
    uses_fsdp,
)
from ..common.command_line import parse_arguments
from ..common.presets import Preset
from .presets import NMT_PRESETS

# Metrics for `--metric_for_best_model` besides the losses; the validation set is translated for them.
DECODED_METRICS = ("bleu", "chrf")
SPLIT_FILES = ("train_file", "validation_file", "test_file")
SPLIT_PAIRS = tuple(f"{split}_{side}" for split in ("train", "validation", "test") for side in ("source", "target"))


@dataclass
class NmtDataArguments:
    """Which sentence pairs, and how they are cut into tokens and batches."""

    # The options that choose the pairs.
    which_data: ClassVar[tuple[str, ...]] = (
        *SPLIT_PAIRS,
        *SPLIT_FILES,
        "dataset_name",
        "dataset_config",
        "source_lang",
        "target_lang",
        "reverse",
        "source_prefix",
        "validation_percentage",
    )
    # The options that belong to the model.
    of_the_model: ClassVar[tuple[str, ...]] = ("source_prefix",)

    train_source: list[str] | None = HfArg(
        default=None,
        help="Text files to translate from, one sentence a line. Without any data option: English and German "
        "sentences of a small grammar.",
    )
    train_target: list[str] | None = HfArg(default=None, help="Their translations, line by line.")
    validation_source: list[str] | None = HfArg(
        default=None, help="The same for early stopping, the best checkpoint and the best λ."
    )
    validation_target: list[str] | None = HfArg(default=None, help="Their translations.")
    test_source: list[str] | None = HfArg(default=None, help="The same for the final figures.")
    test_target: list[str] | None = HfArg(
        default=None, help="Their translations; without them, the sentences are translated only."
    )
    train_file: list[str] | None = HfArg(
        default=None,
        help='Instead of text files: JSON lines with both languages, `{"en": ..., "de": ...}`, or inside a '
        "field `translation`.",
    )
    validation_file: list[str] | None = HfArg(default=None, help="JSON lines for validation.")
    test_file: list[str] | None = HfArg(default=None, help="JSON lines for the final figures.")
    dataset_name: str | None = HfArg(
        default=None, help="Instead of files: a translation set's name on the Hub, or a folder."
    )
    dataset_config: str | None = HfArg(default=None, help="The dataset's configuration, if it has many.")
    source_lang: str | None = HfArg(
        default=None, help="The field to translate from in JSON lines and datasets, such as `en`."
    )
    target_lang: str | None = HfArg(default=None, help="The field to translate into, such as `de`.")
    reverse: bool = HfArg(default=False, help="Translate in the other direction.")
    source_prefix: str | None = HfArg(
        default=None,
        help="Put this before every source, as T5 wants: `translate English to German: `. Default: the run's.",
    )
    validation_percentage: float = HfArg(
        default=2.0, help="Without a validation set, so many of the training pairs are held out for it."
    )
    tokenizer: str | None = HfArg(
        default=None,
        help="`bpe`: one byte-level BPE for both languages, trained on the pairs; or a pretrained tokenizer's "
        "name or folder. Default: the model's own with `--model_name_or_path`, else `bpe`.",
    )
    vocab_size: int | None = HfArg(default=None, help="Size of a trained tokenizer. Default: the preset's.")
    max_length: int | None = HfArg(
        default=None, help="Drop training pairs of which a side has more tokens. Default: the preset's, or none."
    )
    max_length_ratio: float | None = HfArg(
        default=None, help="Drop training pairs of which a side is so many times as long. Default: the preset's."
    )
    batch_tokens: int = HfArg(
        default=4096, help="Tokens in a batch of each process, padding included, on the longer side of the pairs."
    )
    num_workers: int | None = HfArg(default=None, help="Processes that tokenize. Default: one for each core.")

    def __post_init__(self):
        kinds = [self._has(SPLIT_PAIRS), self._has(SPLIT_FILES), self.dataset_name is not None]
        if sum(kinds) > 1:
            raise InputError("Give parallel text files, or JSON lines, or `--dataset_name`: only one of them.")
        for name in ("vocab_size", "max_length", "batch_tokens", "num_workers"):
            check_at_least(name, getattr(self, name), 2 if name == "max_length" else 1)
        check_at_least("max_length_ratio", self.max_length_ratio, 1)

    def _has(self, names: Sequence[str]) -> bool:
        return any(getattr(self, name) for name in names)

    def is_given(self) -> bool:
        """Whether pairs were named."""
        return self.dataset_name is not None or self._has((*SPLIT_PAIRS, *SPLIT_FILES))


@dataclass
class NmtModelArguments(GenerativeModelArguments):
    """Which model: a Marian, BART or T5."""

    presets: ClassVar[dict[str, Preset]] = NMT_PRESETS
    decoded_metrics: ClassVar[tuple[str, ...]] = DECODED_METRICS
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "plain": {**GenerativeModelArguments.kinds["plain"], "bow_loss_weight": 0.0},
        "bow": {**GenerativeModelArguments.kinds["plain"], "bow_loss_weight": 1.0},
        "simple": {**GenerativeModelArguments.kinds["simple"], "bow_loss_weight": 0.0},
        "wdr": {**GenerativeModelArguments.kinds["wdr"], "bow_loss_weight": 0.0},
    }

    preset: str | None = preset_field(NMT_PRESETS)
    bow_loss_weight: float | None = HfArg(
        default=None, help="The weight of the bag-of-words loss (Ma et al. 2018), a baseline of the paper; 0 is off."
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
    """What is translated and shown."""

    num_beams: int | None = HfArg(
        default=None, help="Beams of the search; 1 takes the best word each time. Default: the checkpoint's, else 5."
    )
    length_penalty: float | None = HfArg(
        default=None,
        help="The power of its length that a translation's score is divided by. Default: the checkpoint's, else 1.",
    )
    num_examples: int = HfArg(default=5, help="How many translations to show side by side.")
    translate: str | None = HfArg(
        default=None, help="Translate this file, a sentence a line, with `--do_train false --model_name_or_path RUN`."
    )
    translate_to: str | None = HfArg(default=None, help="Where the translations go. Default: the standard output.")

    def __post_init__(self):
        super().__post_init__()
        check_at_least("num_beams", self.num_beams, 1)
        check_at_least("num_examples", self.num_examples, 0)


@dataclass
class NmtTrainingArguments(RunTrainingArguments):
    """Trainer's own options."""

    output_dir: str | None = output_dir_field("runs/nmt")
    per_device_train_batch_size: int = HfArg(default=1, help="Always 1: a batch is made of `--batch_tokens` tokens.")
    per_device_eval_batch_size: int = HfArg(default=1, help="The same in evaluation.")

    def __post_init__(self):
        if self.per_device_train_batch_size != 1 or self.per_device_eval_batch_size != 1:
            raise InputError("Batches are made by tokens: set `--batch_tokens` instead of a number of sentences.")
        super().__post_init__()


def parse_nmt_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """The options of `train_nmt.py` from its command line."""
    classes = (NmtDataArguments, NmtModelArguments, NmtReportArguments, NmtTrainingArguments)
    return parse_arguments(classes, arguments, description)


def check_nmt_arguments(arguments: RunArguments) -> None:
    """Check the options that only a translation run has."""
    report, training = arguments.report, arguments.training
    is_decoded = (training.metric_for_best_model or "").removeprefix("eval_") in DECODED_METRICS
    if is_decoded and uses_fsdp(training):
        raise InputError("FSDP's shards cannot translate while they train: leave out `--metric_for_best_model`.")
    if report.translate is not None and training.do_train:
        raise InputError("`--translate` uses a trained model: add `--do_train false --model_name_or_path RUN`.")
    if report.translate_to is not None and report.translate is None:
        raise InputError("`--translate_to` says where the translations of `--translate FILE` go: give the file.")
    if report.translate_to is not None and not Path(report.translate_to).absolute().parent.is_dir():
        raise InputError(f"There is no folder for {report.translate_to}: make it, or give another `--translate_to`.")
