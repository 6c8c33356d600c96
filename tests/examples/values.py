"""A prompt for the page, and the values of its components."""

import app

from tests.support.tokenizers import letter_tokenizer
from tests.support.trained import Language

WEIGHTS = (0.6, 0.2, 0.1, 0.1)
NEW_TOKENS = 24
PROMPT = letter_tokenizer().decode(Language(seed=13).prompt(8))


def settings(prompt: str = PROMPT, **changed) -> list:
    """Return the values of the components, in their order."""
    values = {
        "max_new_tokens": NEW_TOKENS,
        "decoding": app.GREEDY,
        "temperature": 0.8,
        "always_drafts": True,
        "choice": app.WEIGHTS,
        "ensemble_lambda": 0.3,
        **{f"w{depth}": weight for depth, weight in enumerate(WEIGHTS)},
    }
    return [prompt, *{**values, **changed}.values()]
