"""The command `ngram-wdr nmt`, for a checkout of the project: `python train_nmt.py --help` describes it."""

import sys

from ngram_wdr_hf.cli import main

if __name__ == "__main__":
    sys.exit(main(["nmt", *sys.argv[1:]]))
