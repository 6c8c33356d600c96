r"""
Add N-gram heads to a pretrained causal language model and train only them; the model itself stays as it is.

    ngram-wdr heads gpt2                                       # on text that the model writes itself
    ngram-wdr heads gpt2 --prompt_file prompts.txt             # on its own answers to these prompts, one per line
    ngram-wdr heads gpt2 --train_file text.txt --output_dir runs/gpt2-heads
    ngram-wdr heads gpt2 --self_generated 1000000 --ngram_size 3 --draft_vocab_size 8000

MODEL is a folder or a name on the Hub. This is `ngram-wdr clm --model_name_or_path MODEL --train_mode heads` and has
the same options. Without a text, the model writes 200,000 tokens to learn from, unless --self_generated is another
number: heads that draft learn best from what their model says. Then use the result with `generate(use_mtp=True)`.
For translation models, use `ngram-wdr nmt --train_mode heads`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..data.errors import InputError
from ..training.clm.arguments import ClmDataArguments, ClmModelArguments, ClmReportArguments, ClmTrainingArguments
from ..training.clm.run import run_clm
from ..training.common.arguments import output_dir_field
from ..training.common.command_line import parse_arguments

PROG = "ngram-wdr heads MODEL"
OWN_TOKENS = 200_000
# The options that the command itself sets.
FIXED_OPTIONS = ("--model_name_or_path", "--train_mode")


@dataclass
class HeadsDataArguments(ClmDataArguments):
    """The options of `ngram-wdr clm` for the text. Without a text, the model writes one."""

    train_file: list[str] | None = HfArg(
        default=None,
        help="UTF-8 text files to train on. Default, without any data option: text that the model writes itself.",
    )

    def __post_init__(self):
        if self.self_generated is None and not self.is_given():
            self.self_generated = OWN_TOKENS
        super().__post_init__()


@dataclass
class HeadsTrainingArguments(ClmTrainingArguments):
    """The options of `ngram-wdr clm` for training, with another default folder."""

    output_dir: str | None = output_dir_field("runs/heads")


def main(arguments: Sequence[str]) -> None:
    has_model = bool(arguments) and not arguments[0].startswith("-")
    for name in [argument.partition("=")[0] for argument in arguments]:
        if name in FIXED_OPTIONS:
            raise InputError(f"`{name}` is fixed here. Remove it, or use `ngram-wdr clm`, which has it.")
    # After the other options: a settings file comes first.
    fixed = ["--model_name_or_path", arguments[0], "--train_mode", "heads"] if has_model else []
    options = [*arguments[has_model:], *fixed]
    classes = (HeadsDataArguments, ClmModelArguments, ClmReportArguments, HeadsTrainingArguments)
    parsed = parse_arguments(classes, options, __doc__, PROG)
    if not has_model:
        raise InputError(f"Name the model that gets heads first: `{PROG} [--option value ...]`.")
    if not parsed.training.do_train:
        raise InputError(
            "`ngram-wdr heads` trains. To evaluate, use `ngram-wdr clm --do_train false --model_name_or_path MODEL`."
        )
    run_clm(parsed)
