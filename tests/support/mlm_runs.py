"""Small runs of `train_mlm.py`."""

from ngram_wdr_hf.training.mlm import main
from ngram_wdr_hf.training.report import RunResult
from tests.support.scripts import QUICK_BLOCKS, as_arguments

QUICK = as_arguments(**QUICK_BLOCKS, vocab_size=300)


def run(*arguments: str) -> RunResult:
    return main(arguments)
