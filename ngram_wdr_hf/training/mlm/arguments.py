"""Options of `ngram-wdr mlm`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ...data.masking import FRAME, KINDS, Masking
from ...modeling.masked import COMPOSITIONS
from ..common.arguments import (
    ModelArguments,
    ReportArguments,
    RunArguments,
    RunTrainingArguments,
)
from ..common.checks import Range, check_at_least, check_choice, check_number
from ..common.command_line import parse_arguments
from ..common.option_fields import (
    best_metric_field,
    compare_field,
    output_dir_field,
    overrides_help,
    preset_field,
    recipe_field,
)
from ..common.presets import Preset
from ..common.text_arguments import TextDataArguments
from .presets import MLM_PRESETS


@dataclass
class MlmDataArguments(TextDataArguments):
    """Options for the text, its tokenizer and the masking."""

    model_options: ClassVar[tuple[str, ...]] = (*TextDataArguments.model_options, "masking", "mlm_probability")

    validation_file: list[str] | None = HfArg(
        default=None,
        help="Text files to select the best checkpoint on, and for early stopping. Default: a part of the training "
        "text, see `--validation_percentage`.",
    )
    vocab_size: int | None = HfArg(
        default=None,
        help="Maximum vocabulary size of a tokenizer trained on the text; ignored for a pretrained one. Default: the "
        "preset's.",
    )
    tokenizer: str | None = HfArg(
        default=None,
        help="`bpe`: lower-case byte-level BPE, trained on the text; otherwise the name or folder of a pretrained "
        "tokenizer with a mask token. Default: the checkpoint's with `--model_name_or_path`, else `bpe`.",
    )
    masking: str | None = HfArg(
        default=None,
        help="What to mask: `token`, single tokens; `span`, spans of up to ten tokens, as in SpanBERT. Default: "
        "`token`; in evaluation, as in the run's training.",
    )
    mlm_probability: float | None = HfArg(
        default=None,
        help="Share of tokens to mask, between 0 and 1. Default: the preset's, else 0.15; in evaluation, as in the "
        "run's training.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("masking", self.masking, KINDS)
        check_at_least("block_size", self.block_size, 1 + FRAME)
        check_number("mlm_probability", self.mlm_probability, Range(above=0, below=1))

    def masking_for(self, tokenizer: PreTrainedTokenizerBase) -> Masking:
        """
        Return the masking that the options select, for a tokenizer. Raise an `InputError` if it lacks a mask, CLS, SEP
        or padding token.
        """
        options = {"kind": self.masking, "probability": self.mlm_probability}
        return Masking(tokenizer, **{name: value for name, value in options.items() if value is not None})


@dataclass
class MlmModelArguments(ModelArguments):
    """Options for the model: a new BERT or ModernBERT by preset, or a checkpoint of one."""

    presets: ClassVar[dict[str, Preset]] = MLM_PRESETS
    model_kind: ClassVar[str] = "masked"
    targets: ClassVar[tuple[str, ...]] = ("wdr", "none")
    # There is no ensemble: free heads would have no effect at all.
    default_recipe: ClassVar[str] = "paper"
    scored_metrics: ClassVar[tuple[str, ...]] = ("loss", "perplexity", "accuracy", "masked_word_loss", "heads_loss")
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "plain": ModelArguments.kinds["plain"],
        "wdr": {"ngram_target": "wdr", "wdr_compose": "all"},
        "masked": {"ngram_target": "wdr", "wdr_compose": "masked"},
    }

    preset: str | None = preset_field(MLM_PRESETS)
    config_overrides: list[str] | None = HfArg(default=None, help=overrides_help("num_hidden_layers=3 hidden_size=96"))
    recipe: str | None = recipe_field("paper", has_ensemble=False)
    ngram_size: int | None = HfArg(
        default=None,
        help="The paper's N: N - 1 heads predict word differences of levels 1 to N - 1; 1 is the plain model. "
        "Default: the checkpoint's, else 3.",
    )
    ngram_target: str | None = HfArg(
        default=None,
        help="What the heads predict: `wdr`, word differences; `none`, no heads. Default: the checkpoint's, else "
        "`wdr`.",
    )
    wdr_compose: str | None = HfArg(
        default=None,
        help="Which tokens head n composes a masked token with: `all`, the next n tokens, masked or not; `masked`, "
        "the next n tokens only if all of them are masked, too (head n has no target elsewhere). Default: the "
        "checkpoint's, else `all`.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("wdr_compose", self.wdr_compose, COMPOSITIONS)

    @property
    def kind(self) -> str:
        kind = super().kind
        return "masked" if kind == "wdr" and self.wdr_compose == "masked" else kind


@dataclass
class MlmReportArguments(ReportArguments):
    """Options for evaluation and reports, with the number of examples."""

    compare: bool = compare_field("such as plain, or with the other `--wdr_compose`")
    num_examples: int = HfArg(
        default=8, help="Number of masked tokens to show with the model's predictions; 0 shows none."
    )

    def __post_init__(self):
        super().__post_init__()
        check_at_least("num_examples", self.num_examples, 0)


@dataclass
class MlmTrainingArguments(RunTrainingArguments):
    """Options for training: those of `RunTrainingArguments`, with a default folder."""

    output_dir: str | None = output_dir_field("runs/mlm")
    metric_for_best_model: str | None = best_metric_field("the loss")


def parse_mlm_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """
    Parse the command line of `ngram-wdr mlm`: options, with or without a YAML file before them. Raise an `InputError`
    for unknown options and bad values. `description` heads the text of `--help`.
    """
    classes = (MlmDataArguments, MlmModelArguments, MlmReportArguments, MlmTrainingArguments)
    return parse_arguments(classes, arguments, description, "ngram-wdr mlm")
