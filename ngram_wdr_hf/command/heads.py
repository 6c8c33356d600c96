r"""
Add N-gram heads to a pretrained causal language model and train only them; the model itself stays as it is.

    ngram-wdr heads gpt2                                       # on text that the model writes itself
    ngram-wdr heads gpt2 --prompt_file prompts.txt             # on its own answers to these prompts, one per line
    ngram-wdr heads gpt2 --train_file text.txt --output_dir runs/gpt2-heads
    ngram-wdr heads gpt2 --self_generated 1000000 --ngram_size 3 --draft_vocab_size 8000

MODEL is a folder or a name on the Hub. This is `ngram-wdr clm --model_name_or_path MODEL --train_mode heads` and has
the same options, with defaults for heads that draft. Without a text, the model writes 200,000 tokens to learn from,
unless --self_generated is another number: heads that draft learn best from what their model says. The result drafts
in `generate` by default. For translation models, use `ngram-wdr nmt --train_mode heads`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..data.errors import InputError
from ..training.clm.arguments import ClmDataArguments, ClmModelArguments, ClmReportArguments, ClmTrainingArguments
from ..training.clm.run import run_clm
from ..training.common.arguments import HEADS_LEARNING_RATE
from ..training.common.command_line import parse_arguments
from ..training.common.option_fields import output_dir_field
from ..training.common.run_folder import RunFolder

PROG = "ngram-wdr heads MODEL"
OWN_TOKENS = 200_000
# Options that the command sets itself, and options that have no use here.
FIXED_OPTIONS = ("model_name_or_path", "train_mode")
HIDDEN_OPTIONS = (*FIXED_OPTIONS, "compare", "do_train", "lora_rank")


@dataclass
class HeadsDataArguments(ClmDataArguments):
    """The options of `ngram-wdr clm` for the text. Without a text, the model writes one."""

    train_file: list[str] | None = HfArg(
        default=None,
        help="UTF-8 text files to train on. Default, without any data option: text that the model writes itself.",
    )
    self_generated: int | None = HfArg(
        default=None,
        help="Number of tokens that the model writes itself as training text, from the prompts of `--prompt_file` or "
        f"from its start token. Default: {OWN_TOKENS:,} without `--train_file` and `--dataset_name`, else none.",
    )

    def __post_init__(self):
        if self.self_generated is None and not self.is_given():
            self.self_generated = OWN_TOKENS
        super().__post_init__()


@dataclass
class HeadsModelArguments(ClmModelArguments):
    """The options of `ngram-wdr clm` for the model, with defaults for heads that draft."""

    ngram_head_expansion: int | None = HfArg(
        default=3,
        help="Width of new heads between their two layers, in multiples of the model's width. Wider heads draft "
        "better, and cost more.",
    )
    head_sample_rate: float | None = HfArg(
        default=1.0,
        help="The share ρ of the positions that each head is trained on in a step, chosen at random, greater than 0 "
        "and at most 1. A smaller share makes training faster.",
    )
    head_loss_tokens: str | None = HfArg(
        default="draft",
        help="The vocabulary of the heads' training loss: `all` tokens, or only the `draft` tokens, which is faster "
        "with a large vocabulary, but only good for drafting.",
    )
    cache_hidden_states: bool = HfArg(
        default=True,
        help="Compute the hidden states of the training text once and keep them in `--output_dir`. The heads then "
        "learn the model's own most likely tokens instead of the text's.",
    )


@dataclass
class HeadsTrainingArguments(ClmTrainingArguments):
    """The options of `ngram-wdr clm` for training, with another default folder and learning rate."""

    output_dir: str | None = output_dir_field("runs/heads")
    learning_rate: float = HfArg(default=HEADS_LEARNING_RATE, help="Peak learning rate.")


def main(arguments: Sequence[str]) -> None:
    has_model = bool(arguments) and not arguments[0].startswith("-")
    for name in [argument.partition("=")[0] for argument in arguments]:
        if name.removeprefix("--") in FIXED_OPTIONS:
            raise InputError(f"`{name}` is fixed here. Remove it, or use `ngram-wdr clm`, which has it.")
    # After the other options: a settings file comes first.
    fixed = ["--train_mode", "heads", "--model_name_or_path", arguments[0] if has_model else "MODEL"]
    options = [*arguments[has_model:], *fixed]
    classes = (HeadsDataArguments, HeadsModelArguments, ClmReportArguments, HeadsTrainingArguments)
    parsed = parse_arguments(classes, options, __doc__, PROG, HIDDEN_OPTIONS)
    if not has_model:
        raise InputError(f"Name the model that gets heads first: `{PROG} [--option value ...]`.")
    if not parsed.training.do_train:
        raise InputError(
            "`ngram-wdr heads` trains. To evaluate, use `ngram-wdr clm --do_train false --model_name_or_path MODEL`."
        )
    if RunFolder(arguments[0]).has_heads():
        # Heads keep their width.
        parsed.model.ngram_head_expansion = None
    run_clm(parsed)
