"""Sources, prompts and caches of encoder-decoder models."""

from contextlib import contextmanager

import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.modeling_outputs import BaseModelOutput

from tests.support.tiny import random_ids, right_pad

# The start token and the padding token of a translation, and the number of generated tokens.
START = PAD = 1
STEPS = 6


def padded_sources() -> tuple[torch.Tensor, torch.Tensor]:
    return right_pad([random_ids(1, 6)[0], random_ids(1, 2, seed=1)[0]])


def prompt(batch_size: int, length: int, seed: int = 7) -> torch.Tensor:
    """Return a decoder prompt. It includes the start token, which `generate` would add otherwise."""
    ids = random_ids(batch_size, length, seed=seed)
    ids[:, 0] = START
    return ids


@contextmanager
def lengths_read(model):
    """Record the number of tokens in each call of the decoder."""
    lengths = []
    handle = model.get_decoder().register_forward_hook(lambda _, args, output: lengths.append(output[0].shape[1]))
    try:
        yield lengths
    finally:
        handle.remove()


def empty_cache(model, kind: str = "dynamic", source_length: int = 5) -> EncoderDecoderCache:
    if kind == "dynamic":
        return EncoderDecoderCache(DynamicCache(), DynamicCache())
    if kind == "dynamic with config":
        return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
    lengths = (20, source_length)
    return EncoderDecoderCache(*(StaticCache(config=model.config, max_cache_len=length) for length in lengths))


def cached_logits(model, ids, encoded, chunks, cache, mask=None, source_mask=None, **kwargs):
    """Return the logits of every decoder position, read with a cache in chunks of the given lengths."""
    logits, start = [], 0
    for length in chunks:
        end = start + length
        output = model(
            encoder_outputs=encoded,
            attention_mask=source_mask,
            decoder_input_ids=ids[:, start:end],
            decoder_attention_mask=None if mask is None else mask[:, :end],
            past_key_values=cache,
            use_cache=True,
            **kwargs,
        )
        cache = output.past_key_values
        logits.append(output.logits)
        start = end
    assert start == ids.shape[1]
    return torch.cat(logits, dim=1)


def encode(model, sources, mask=None) -> BaseModelOutput:
    return model.get_encoder()(sources, attention_mask=mask)
