"""Small runs of `train_mlm.py`."""

from ngram_wdr_hf.training.mlm.arguments import parse_mlm_arguments
from ngram_wdr_hf.training.mlm.report import MlmResult
from ngram_wdr_hf.training.mlm.run import run_mlm
from tests.support.processes import ROOT
from tests.support.scripts import QUICK_BLOCKS, as_arguments

SCRIPT = ROOT / "train_mlm.py"
QUICK = as_arguments(**QUICK_BLOCKS, vocab_size=300, num_examples=3)


def run(*arguments: str) -> list[MlmResult]:
    return run_mlm(parse_mlm_arguments(arguments, "train_mlm.py"))
