"""`python -m ngram_wdr_hf`: the command `ngram-wdr`, also for `accelerate launch -m ngram_wdr_hf`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
