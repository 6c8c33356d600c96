"""Functions to read a text and to run `generate` for every kind of model, and to compare outputs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from ngram_wdr_hf import NgramEnsembleLogitsProcessor
from tests.support import reference
from tests.support.batches import TOLERANCE
from tests.support.options import EVERYTHING
from tests.support.tiny import prompts, random_ids

# The start token of a translation, and the number of generated tokens.
START, STEPS = 1, 6
# Sources of different lengths, for encoder-decoder models.
SOURCES = prompts(4, "marian")


def prompt(batch_size: int, length: int, seed: int = 7) -> torch.Tensor:
    """Return a text that begins with the start token, which `generate` would add to a translation otherwise."""
    ids = random_ids(batch_size, length, seed=seed)
    ids[:, 0] = START
    return ids


def sources(model, rows: int | torch.Tensor) -> dict[str, torch.Tensor]:
    """Return as many sources as there are rows, or those of the given rows; nothing for a decoder-only model."""
    rows = slice(rows) if isinstance(rows, int) else rows
    return {key: value[rows] for key, value in SOURCES.items()} if model.config.is_encoder_decoder else {}


def text_inputs(
    model, ids: torch.Tensor, rows: torch.Tensor | None = None, **text: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """
    Return the arguments of `forward` and `generate` for a text, which an encoder-decoder model reads in its decoder,
    after the sources of `rows`. `text` is its mask and its positions.
    """
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    text = {f"{prefix}{name}": value for name, value in {"input_ids": ids, **text}.items() if value is not None}
    return text | sources(model, len(ids) if rows is None else rows)


def reference_inputs(model, ids: torch.Tensor, **text: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the arguments of the slow reference for the same text."""
    source = sources(model, len(ids))
    encoder = {"encoder_ids": source["input_ids"], "encoder_mask": source["attention_mask"]} if source else {}
    return {"input_ids": ids, **text, **encoder}


def cache_of(model, kind: str = "dynamic", length: int = 20) -> DynamicCache | StaticCache | EncoderDecoderCache:
    """Return an empty cache."""

    def layers(length: int) -> DynamicCache | StaticCache:
        if kind == "static":
            return StaticCache(config=model.config, max_cache_len=length)
        return DynamicCache(config=model.config) if kind == "dynamic with config" else DynamicCache()

    if not model.config.is_encoder_decoder:
        return layers(length)
    return EncoderDecoderCache(layers(length), layers(SOURCES["input_ids"].shape[1]))


def cached_logits(
    model, ids, chunks, cache=None, attention_mask=None, position_ids=None, rows=None, **kwargs
) -> torch.Tensor:
    """Return the logits of every position, read in chunks of the given lengths with a cache, or the backbone's own."""
    logits, start = [], 0
    for length in chunks:
        end = start + length
        text = {
            "attention_mask": None if attention_mask is None else attention_mask[:, :end],
            "position_ids": None if position_ids is None else position_ids[:, start:end],
        }
        inputs = text_inputs(model, ids[:, start:end], rows, **text)
        output = model(**inputs, past_key_values=cache, use_cache=True, **kwargs)
        cache = output.past_key_values
        logits.append(output.logits)
        start = end
    assert start == ids.shape[1]
    return torch.cat(logits, dim=1)


def generate(model, inputs: dict[str, Any], seed: int = 0, **options):
    """Generate eight tokens (six for a translation), with scores and logits."""
    torch.manual_seed(seed)
    is_translation = model.config.is_encoder_decoder
    # Without a mask, `generate` takes the start token for padding.
    default = (
        {} if is_translation or "input_ids" not in inputs else {"attention_mask": torch.ones_like(inputs["input_ids"])}
    )
    default |= {"max_new_tokens": STEPS if is_translation else 8, "do_sample": False}
    return model.generate(**{**default, **inputs, **EVERYTHING, **options})


def assert_greedy(model, output, ids, **text):
    """
    Check the logits and tokens of a greedy generation with λ = 0.4 after the prompt `ids` against the slow reference.
    Return what the ensemble changes in the logits.
    """
    inputs = reference_inputs(model, output.sequences[:, :-1], **text)
    logits = reference.ensembled_logits(model, ensemble_lambda=0.4, **inputs)[:, ids.shape[1] - 1 :]
    torch.testing.assert_close(torch.stack(output.logits, dim=1), logits.float(), **TOLERANCE["t5"])
    assert torch.equal(output.sequences[:, ids.shape[1] :], logits.argmax(-1))
    return logits - reference.ensembled_logits(model, ensemble_lambda=0.0, **inputs)[:, ids.shape[1] - 1 :]


@contextmanager
def lengths_read(model) -> Iterator[list[int]]:
    """Record the number of tokens in each call of the decoder."""
    lengths = []
    handle = model.get_decoder().register_forward_hook(lambda _, args, output: lengths.append(output[0].shape[1]))
    try:
        yield lengths
    finally:
        handle.remove()


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
