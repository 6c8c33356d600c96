"""The command `ngram-wdr glue`, for a checkout of the project: `python finetune_glue.py --help` describes it."""

import sys

from ngram_wdr_hf.cli import main

if __name__ == "__main__":
    sys.exit(main(["glue", *sys.argv[1:]]))
