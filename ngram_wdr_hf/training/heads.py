"""
Add N-gram heads to a pretrained causal language model and train only them; the model itself stays as it is.

    ngram-wdr heads gpt2                                       # on text that the model writes itself
    ngram-wdr heads gpt2 --prompt_file prompts.txt             # on its own answers to these prompts, one per line
    ngram-wdr heads gpt2 --train_file text.txt --output_dir runs/gpt2-heads
    ngram-wdr heads gpt2 --self_generated 1000000 --ngram_size 3 --draft_vocab_size 8000

MODEL is a folder or a name on the Hub. This is `ngram-wdr clm --model_name_or_path MODEL --train_mode heads` with
defaults for heads that draft. Without a text, the model writes 200,000 tokens to learn from: heads that draft learn
best from what their model says. The result drafts in `generate` by default.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..data.errors import InputError
from . import clm
from .report import RunResult


@dataclass
class HeadsOptions(clm.ClmOptions):
    """The options of `ngram-wdr clm` for the text. Without a text, the model writes one."""

    def __post_init__(self):
        if self.self_generated is None and not self.names_text:
            self.self_generated = 200_000
        super().__post_init__()


def main(arguments: Sequence[str]) -> RunResult:
    """Train heads on a pretrained model."""
    words = [*arguments]
    if words and not words[0].startswith("-"):
        words = [*words[1:], "--train_mode", "heads", "--model_name_or_path", words[0]]
    elif not {"-h", "--help"} & {*words}:
        raise InputError("Name the model that gets heads first: `ngram-wdr heads MODEL [--option value ...]`.")
    defaults = {"recipe": "drafts", "cache_hidden_states": True, "output_dir": "runs/heads"}
    return clm.main(words, HeadsOptions, prog="ngram-wdr heads MODEL", description=__doc__, defaults=defaults)
