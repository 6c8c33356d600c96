"""
Judge the paper's claims by the results of the experiments.

    python experiments/verdicts.py

It reads experiments/results/*.json, written by experiments/run.py, and writes docs/results/verdicts.md.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from runner.tables import ROOT
from runner.verdicts_page import write_verdicts

from ngram_wdr_hf.cli import run_script


def main(arguments: Sequence[str]) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, default=ROOT / "experiments" / "results", help="Folder of the results."
    )
    parser.add_argument("--pages", type=Path, default=ROOT / "docs" / "results", help="Folder of the page.")
    options = parser.parse_args(arguments)
    page = options.pages / "verdicts.md"
    write_verdicts(options.results, page)
    print(f"Written: {page}")


if __name__ == "__main__":
    sys.exit(run_script(main))
