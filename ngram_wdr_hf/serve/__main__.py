r"""
Serve a checkpoint with an OpenAI-style API: `transformers serve`, with the model classes of this package.

    ngram-wdr serve runs/clm --port 8000

The arguments are those of `transformers serve`. `python -m ngram_wdr_hf.serve` is the same command.
"""

import sys
from collections.abc import Sequence

from transformers.utils.import_utils import is_serve_available

from ..data.errors import InputError
from ..evaluation.models import as_input_error
from .checks import check_served_model

COMMAND = "ngram-wdr serve"


def main(arguments: Sequence[str]) -> None:
    if not is_serve_available():
        raise InputError('Serving needs packages that are missing: run `pip install "ngram-wdr-hf[serve]"`.')
    from transformers.cli.transformers import app

    server = app.commands["serve"]
    options = server.make_context(COMMAND, list(arguments), resilient_parsing=True).params
    if options["force_model"] is not None:
        for note in check_served_model(options["force_model"], options["continuous_batching"]):
            print(note, flush=True)
    # Such as damaged weights.
    with as_input_error():
        server.main(list(arguments), prog_name=COMMAND)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
