"""What drafts gain in greedy search, measured by counts: tokens, forward passes, accepted drafts."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..data.token_stream import TokenStream
from ..decoding.statistics import SpeculationStatistics
from .models import max_positions
from .modes import evaluating

PROMPT_TOKENS = 32

Prompts = list[dict[str, torch.Tensor]]


def greedy_drafts(
    model: PreTrainedModel, prompts: Iterable[Mapping[str, torch.Tensor]], max_new_tokens: int, **options: Any
) -> SpeculationStatistics:
    r"""
    Generate greedily with drafts after each prompt. Return the statistics of all prompts together.
    Raise `CannotDraft` if the model cannot draft.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        prompts (`Iterable[Mapping[str, torch.Tensor]]`): Arguments of `generate`, with one batch row each.
        max_new_tokens (`int`): Maximum number of new tokens per prompt, also limited by the model's positions.
        options: More arguments of `generate`.
    """
    total = SpeculationStatistics()
    for prompt in prompts:
        length = 1 if model.config.is_encoder_decoder else prompt["input_ids"].shape[1]
        with evaluating(model):
            total += model.generate(
                **{name: tensor.to(model.device) for name, tensor in prompt.items()},
                # Avoids Transformers' warning about two limits.
                max_length=None,
                max_new_tokens=min(max_new_tokens, (max_positions(model) or math.inf) - length),
                do_sample=False,
                num_beams=1,
                use_mtp=True,
                return_dict_in_generate=True,
                **options,
            ).speculation
    return total


def text_prompts(model: PreTrainedModel, stream: TokenStream, num_prompts: int) -> Prompts:
    """
    Return up to `num_prompts` evenly spaced pieces of a text as arguments of `generate`, at most half as long as the
    model's context.
    """
    length = max(1, min(PROMPT_TOKENS, (max_positions(model) or math.inf) // 2, len(stream)))
    begins = np.linspace(0, len(stream) - length, num_prompts).astype(int)
    return row_prompts(stream[begin : begin + length] for begin in sorted(set(begins.tolist())))


def row_prompts(rows: Iterable) -> Prompts:
    """Return rows of token ids as arguments of `generate`."""
    pieces = [torch.as_tensor(row).long()[None] for row in rows]
    return [{"input_ids": piece, "attention_mask": torch.ones_like(piece)} for piece in pieces]
