"""Greedy decoding with and without drafts, and a check that drafts do not change the text."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from tests.support.options import DRAFTING, END, PAD


def plain(model, input_ids, attention_mask=None, **options) -> Any:
    options = {"max_new_tokens": 16, "do_sample": False, **options}
    return model.generate(input_ids, attention_mask=attention_mask, **options)


def speculate(model, input_ids, attention_mask=None, returns=True, **options):
    """Return the sequences, and the statistics if `returns`. Otherwise finished rows leave the batch."""
    output = plain(model, input_ids, attention_mask, use_mtp=True, return_dict_in_generate=returns, **options)
    return (output.sequences, output.speculation) if returns else (output, None)


def summary(statistics) -> Counter:
    drafted, accepted = sum(statistics.num_drafted), sum(statistics.num_accepted)
    return Counter(
        {
            "accepted": accepted,
            "rejected": drafted - accepted,
            "copied": statistics.num_copied,
            "tokens": statistics.num_tokens,
            "row forwards": statistics.num_row_forwards,
        }
    )


def assert_drafts_change_nothing(
    model, batches: Iterable[dict[str, torch.Tensor]], ensemble_lambda: float
) -> dict[str, Counter]:
    """Check every batch with two drafting options. Return the summed statistics by option."""
    counts = {name: Counter() for name in DRAFTING}
    num_unevenly_ended = num_cut = 0
    for i, batch in enumerate(batches):
        expected = plain(model, **batch, ensemble_lambda=ensemble_lambda)
        new = expected[:, 1 if model.config.is_encoder_decoder else batch["input_ids"].shape[1] :]
        lengths = (new != PAD).sum(1)
        has_ended = (new == END).any(1)
        num_unevenly_ended += len(lengths[has_ended].unique()) > 1
        num_cut += int((~has_ended).sum())
        # Use the last two options for the first two batches, the first two for the next two, and so on.
        for j, name in enumerate(list(DRAFTING)[2:] if i // 2 % 2 == 0 else list(DRAFTING)[:2]):
            returns = (i + j) % 2 == 1
            options = {"returns": returns, "ensemble_lambda": ensemble_lambda, **DRAFTING[name]}
            sequences, statistics = speculate(model, **batch, **options)
            assert torch.equal(sequences, expected), (name, len(expected))
            if returns:
                assert statistics.num_tokens == lengths.sum()
                counts[name] += summary(statistics)
    # Check that the batches covered all cases.
    assert num_unevenly_ended > 3
    assert num_cut > 5
    for name in ("always", "heads only, always"):
        assert counts[name]["accepted"] > 0, name
        assert counts[name]["rejected"] > 0, name
        assert (counts[name]["copied"] > 0) == (name == "always")
    return counts
