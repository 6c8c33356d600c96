"""Functions to run `generate`, compare its outputs, and read a text with a cache."""

from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import DynamicCache

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support.encoder_decoder import STEPS
from tests.support.options import EVERYTHING
from tests.support.tiny import random_ids


def cached_logits(model, ids, chunks, cache=None, attention_mask=None, position_ids=None, **kwargs):
    """Return the logits of every position, read with a cache in chunks of the given lengths."""
    cache = DynamicCache() if cache is None else cache
    logits, start = [], 0
    for length in chunks:
        end = start + length
        output = model(
            ids[:, start:end],
            past_key_values=cache,
            attention_mask=None if attention_mask is None else attention_mask[:, :end],
            position_ids=None if position_ids is None else position_ids[:, start:end],
            use_cache=True,
            **kwargs,
        )
        logits.append(output.logits)
        start = end
    assert start == ids.shape[1]
    return torch.cat(logits, dim=1)


def generate(model, ids, seed=0, **options):
    """Generate eight tokens (six for a translation), with scores and logits."""
    torch.manual_seed(seed)
    options = {"max_new_tokens": STEPS if model.config.is_encoder_decoder else 8, "do_sample": False, **options}
    return model.generate(ids, **EVERYTHING, **options)


def assert_same_generation(actual, expected, tolerance=1e-5):
    assert torch.equal(actual.sequences, expected.sequences)
    for kind in ("scores", "logits"):
        for score, wanted in zip(actual[kind], expected[kind], strict=True):
            torch.testing.assert_close(score, wanted, rtol=0, atol=tolerance)


def differ(output, other) -> bool:
    """Return whether the texts or their logits differ."""
    return not torch.equal(output.sequences, other.sequences) or not torch.allclose(
        torch.stack(output.logits), torch.stack(other.logits), atol=0.01
    )


def assert_threads_change_nothing(model, num_threads: int, max_new_tokens: int) -> None:
    """Check that concurrent `generate` calls with different λ, greedy and with beams, do not affect each other."""
    jobs = [(random_ids(2, 5, seed=i), 0.1 * i, 1 + 2 * (i % 2)) for i in range(num_threads)]

    def run(job) -> torch.Tensor:
        ids, ensemble_lambda, num_beams = job
        options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": False}
        return model.generate(ids, logits_processor=[NgramEnsembleLogitsProcessor(model, ensemble_lambda)], **options)

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(num_threads) as pool:
        together = list(pool.map(run, jobs))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
