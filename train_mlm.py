"""The command `ngram-wdr mlm`, for a checkout of the project: `python train_mlm.py --help` describes it."""

import sys

from ngram_wdr_hf.cli import main

if __name__ == "__main__":
    sys.exit(main(["mlm", *sys.argv[1:]]))
