r"""
Analyze a run of `ngram-wdr clm`, `nmt`, `mlm` or `heads` and write a self-contained HTML report: settings, training
curves, results over λ, perplexity and accuracy of each head, acceptance rate of drafts, a generated text with the
source of each token, gain of the ensemble, gradient diversity, and a map of the targets.

    ngram-wdr report runs/clm                                  # writes runs/clm/analysis.html
    ngram-wdr report runs/clm --split test --output clm.html
    ngram-wdr report runs/clm --prompt "The value of" --new_tokens 100

For a `--compare` run, the report shows all models side by side. Start the command in the directory where the run was
started, so that relative paths of text files are valid. `python -m ngram_wdr_hf.analysis` is the same command.
"""

import sys
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence

import datasets
from transformers.utils import logging

from ..training.common.checks import check_at_least
from ..training.common.command_line import run_script
from ..training.common.option_parser import OptionParser
from .report import DEFAULT_TOKENS, REPORT, write_report
from .traced_text import DEFAULT_NEW_TOKENS


def main(arguments: Sequence[str]) -> None:
    parser = OptionParser(prog="ngram-wdr report", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="folder of a finished run, the `--output_dir` of its training")
    parser.add_argument("--output", metavar="FILE", help=f"HTML file to write (default: {REPORT} in the run's folder)")
    parser.add_argument(
        "--split",
        choices=("validation", "test"),
        default="validation",
        help="split of the run's data to measure on (default: validation)",
    )
    parser.add_argument(
        "--max_tokens",
        type=int,
        default=DEFAULT_TOKENS,
        help=f"maximum number of tokens to measure on, the first of the split (default: {DEFAULT_TOKENS})",
    )
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="prompt of the generated text that shows the source of each token (default: pieces of the split); for a "
        "translation run, a source sentence",
    )
    parser.add_argument(
        "--new_tokens",
        type=int,
        default=DEFAULT_NEW_TOKENS,
        help=f"maximum number of tokens to generate after each prompt, for that text (default: {DEFAULT_NEW_TOKENS})",
    )
    parser.check(arguments)
    options = parser.parse_args(arguments)
    check_at_least("max_tokens", options.max_tokens, 2)
    check_at_least("new_tokens", options.new_tokens, 1)
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    begin = time.perf_counter()

    def notify(message: str) -> None:
        print(f"{time.perf_counter() - begin:5.0f} s  {message}", flush=True)

    path = write_report(
        options.run,
        options.output,
        options.split,
        options.max_tokens,
        notify,
        prompt=options.prompt,
        new_tokens=options.new_tokens,
    )
    notify(f"Wrote {path}")


if __name__ == "__main__":
    sys.exit(run_script(main))
