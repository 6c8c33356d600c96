"""Comparison of plain and speculative decoding of the same prompts."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.support.options import DRAFTS, END, EVERYTHING


def generate(model, inputs: dict[str, Any], **options):
    return model.generate(**{"max_new_tokens": 20, "do_sample": False, **inputs, **options})


def generate_both(model, inputs: dict[str, Any], **options) -> tuple[Any, Any]:
    """Return the outputs of plain and of speculative decoding."""
    options = {**EVERYTHING, **options}
    return generate(model, inputs, **options), generate(model, inputs, **options, **DRAFTS)


def row_lengths(output, ends: Sequence[int] = (END,)) -> list[int]:
    """Return the number of generated tokens per row, the end token included."""
    rows = output.sequences[:, output.sequences.shape[1] - len(output.scores) :].tolist()
    return [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in rows]


def assert_same_generation(plain, speculative, ends: Sequence[int] = (END,), tolerance: float = 1e-4) -> None:
    """Check that the tokens are equal, the scores are close up to the end of each row, and zero after it."""
    assert torch.equal(speculative.sequences, plain.sequences)
    lengths = row_lengths(plain, ends)
    for kind in ("scores", "logits"):
        for step, (actual, wanted) in enumerate(zip(speculative[kind], plain[kind], strict=True)):
            assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
            is_over = torch.tensor([step >= length for length in lengths])
            torch.testing.assert_close(actual[~is_over], wanted[~is_over], rtol=0, atol=tolerance)
            assert not actual[is_over].any()
    assert speculative.speculation.num_tokens == sum(lengths)


def were_drafts_right(output) -> bool:
    """Return whether some drafts were accepted and some rejected."""
    return 0 < sum(output.speculation.num_accepted) < sum(output.speculation.num_drafted)
