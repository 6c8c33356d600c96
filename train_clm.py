"""The command `ngram-wdr clm`, for a checkout of the project: `python train_clm.py --help` describes it."""

import sys

from ngram_wdr_hf.cli import main

if __name__ == "__main__":
    sys.exit(main(["clm", *sys.argv[1:]]))
