"""The options of `train_mlm.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from ...data.errors import InputError
from ...data.masking import FRAME, KINDS, Masking
from ...modeling.masked import COMPOSITIONS
from ..common.arguments import (
    ModelArguments,
    ReportArguments,
    RunArguments,
    RunTrainingArguments,
    check_at_least,
    check_choice,
    output_dir_field,
    preset_field,
)
from ..common.command_line import parse_arguments
from ..common.presets import Preset
from ..common.text_arguments import TextDataArguments
from .presets import MLM_PRESETS


@dataclass
class MlmDataArguments(TextDataArguments):
    """Which text, how it is cut into tokens, and which of them are masked."""

    of_the_model: ClassVar[tuple[str, ...]] = ("masking", "mlm_probability")
    which_data: ClassVar[tuple[str, ...]] = (*TextDataArguments.which_data, *of_the_model)

    tokenizer: str | None = HfArg(
        default=None,
        help="`bpe`: lower-case byte-level BPE trained on the text; or a pretrained tokenizer's name or "
        "folder, which must have a mask. Default: the model's own with `--model_name_or_path`, else `bpe`.",
    )
    masking: str | None = HfArg(
        default=None,
        help="`token`: every word for itself; `span`: up to ten words in a row, as in SpanBERT. Default: in "
        "evaluation, what the model was trained with; else `token`.",
    )
    mlm_probability: float | None = HfArg(
        default=None,
        help="The share of words that are masked. Default: the preset's; in evaluation, what the model was "
        "trained with; else 0.15.",
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("masking", self.masking, KINDS)
        check_at_least("block_size", self.block_size, 1 + FRAME)
        if self.mlm_probability is not None and not 0 < self.mlm_probability < 1:
            raise InputError(f"`--mlm_probability` must lie between 0 and 1, got {self.mlm_probability}.")

    def masking_for(self, tokenizer: PreTrainedTokenizerBase) -> Masking:
        """What masks the words of a tokenizer."""
        asked = {"kind": self.masking, "probability": self.mlm_probability}
        return Masking(tokenizer, **{name: value for name, value in asked.items() if value is not None})


@dataclass
class MlmModelArguments(ModelArguments):
    """Which model: new, by preset, or a BERT or ModernBERT."""

    presets: ClassVar[dict[str, Preset]] = MLM_PRESETS
    targets: ClassVar[tuple[str, ...]] = ("wdr", "none")
    scored_metrics: ClassVar[tuple[str, ...]] = ("loss", "perplexity", "accuracy", "masked_word_loss", "heads_loss")
    kinds: ClassVar[dict[str, dict[str, Any]]] = {
        "plain": ModelArguments.kinds["plain"],
        "wdr": {"ngram_target": "wdr", "wdr_compose": "all"},
        "masked": {"ngram_target": "wdr", "wdr_compose": "masked"},
    }

    preset: str | None = preset_field(MLM_PRESETS)
    ngram_size: int | None = HfArg(
        default=None,
        help="The paper's N: one more than the highest level of the word differences; 1 is the plain model. "
        "Default: the checkpoint's, else 3.",
    )
    ngram_target: str | None = HfArg(
        default=None, help="`wdr`: heads that learn word differences; `none`: no heads. Default: `wdr`."
    )
    wdr_compose: str | None = HfArg(
        default=None,
        help="Which of the next words a masked word's differences are made with: `all`, or only `masked` ones. "
        "Default: the checkpoint's, else `all`.",
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
    """What is evaluated and shown."""

    num_examples: int = HfArg(default=8, help="How many masked words to show with the model's guesses.")

    def __post_init__(self):
        super().__post_init__()
        check_at_least("num_examples", self.num_examples, 0)


@dataclass
class MlmTrainingArguments(RunTrainingArguments):
    """Trainer's own options."""

    output_dir: str | None = output_dir_field("runs/mlm")
    budget_minutes: float | None = HfArg(
        default=None,
        help="Train for so long by the clock, whatever the machine and the number of epochs: the learning rate "
        "rises for the first quarter of the time and falls to 0 at its end. Default: the preset's, if any. With "
        "0, steps or epochs count.",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.budget_minutes is None:
            return
        if not 0 <= self.budget_minutes < math.inf:
            raise InputError(f"`--budget_minutes` must be 0 or more, got {self.budget_minutes:g}.")
        self.budget_minutes = self.budget_minutes or None
        if self.budget_minutes and self.max_steps > 0:
            raise InputError(
                "Either `--max_steps` or a budget in time says when the training ends: leave out `--max_steps`, or "
                "add `--budget_minutes 0`."
            )


def parse_mlm_arguments(arguments: Sequence[str], description: str) -> RunArguments:
    """The options of `train_mlm.py` from its command line."""
    classes = (MlmDataArguments, MlmModelArguments, MlmReportArguments, MlmTrainingArguments)
    return parse_arguments(classes, arguments, description)
