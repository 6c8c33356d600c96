r"""
Write an HTML page on finished runs of `ngram-wdr clm`, `heads`, `nmt` or `mlm`, side by side. Start it where the runs
were started, so that relative paths of text files are valid.

    ngram-wdr report runs/clm                                  # writes runs/clm/analysis.html
    ngram-wdr report runs/clm runs/other --split test --output both.html
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence

from .report import write_report


def main(arguments: Sequence[str]) -> None:
    """Run `ngram-wdr report`."""
    parser = ArgumentParser("ngram-wdr report", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a finished run; with its `--compare` runs")
    parser.add_argument(
        "--output", metavar="FILE", help="HTML file to write (default: analysis.html in the first run)"
    )
    parser.add_argument("--split", choices=("validation", "test"), default="validation", help="text to measure on")
    parser.add_argument("--max_tokens", type=int, default=30_000, help="measure on this many tokens (default: 30000)")
    parser.add_argument("--prompt", metavar="TEXT", help="prompt of the text by source (default: pieces of the split)")
    print(f"Wrote {write_report(**vars(parser.parse_args(arguments)))}")


if __name__ == "__main__":
    main(sys.argv[1:])
