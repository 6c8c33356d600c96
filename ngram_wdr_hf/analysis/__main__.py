r"""
Analyses what `train_clm.py`, `train_nmt.py` or `train_mlm.py` trained, and writes one HTML file that needs nothing
else: settings, training curves, results over λ, what each head knows, how far its drafts stand, where the ensemble
helps, gradient diversity, and a map of the targets.

    python -m ngram_wdr_hf.analysis runs/clm                       # writes runs/clm/analysis.html
    python -m ngram_wdr_hf.analysis runs/clm --split test --output clm.html

A run that was made with `--compare` is shown beside the others. Start it where the run was started, so that the text
files are found again.
"""

import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

import datasets
from transformers.utils import logging

from ..training.common.arguments import check_at_least
from ..training.common.command_line import run_script
from .report import DEFAULT_TOKENS, REPORT, write_report


def main(arguments: Sequence[str]) -> None:
    parser = ArgumentParser(
        "python -m ngram_wdr_hf.analysis", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--output", metavar="FILE", help=f"the file to write (default: {REPORT} in the run's folder)")
    parser.add_argument(
        "--split",
        choices=("validation", "test"),
        default="validation",
        help="what to measure on (default: validation)",
    )
    parser.add_argument(
        "--max_tokens",
        type=int,
        default=DEFAULT_TOKENS,
        help=f"of a longer text, so many tokens (default: {DEFAULT_TOKENS})",
    )
    options = parser.parse_args(arguments)
    check_at_least("max_tokens", options.max_tokens, 2)
    # A line for each step is enough.
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    begin = time.perf_counter()

    def tell(sentence: str) -> None:
        print(f"{time.perf_counter() - begin:5.0f} s  {sentence}", flush=True)

    path = write_report(options.run, options.output, options.split, options.max_tokens, tell)
    tell(f"Written: {path}")


if __name__ == "__main__":
    sys.exit(run_script(main))
