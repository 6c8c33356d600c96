"""What drafts gain in greedy search, measured by counts: tokens, forward passes, accepted drafts."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..data.stream import TokenStream
from ..decoding.obstacles import CannotDraft
from ..decoding.statistics import SpeculationStatistics
from ..method.ensemble import Ensemble, ensemble_arguments
from .lengths import max_positions
from .modes import evaluating

PROMPT_TOKENS = 32
# The prompts that decide whether a model drafts by default, and the new tokens after each.
NUM_DECIDING_PROMPTS, DECIDING_TOKENS = 8, 48
# Drafts pay if they are expected to make decoding this many times as fast. The estimate does not have the work of the
# loop itself, which makes decoding 5 % slower where no draft is accepted, and as much is left for other prompts.
MIN_SPEEDUP = 1.1

Prompts = list[dict[str, torch.Tensor]]


@dataclass(frozen=True)
class DraftGain:
    r"""
    What the drafts of a model gain in greedy search of one row at a time.

    Args:
        num_prompts (`int`): The number of prompts.
        num_tokens (`int`): The tokens generated after all of them.
        tokens_per_forward (`float`): Tokens per forward pass; 1 without drafts.
        acceptance (`list[float]`): The acceptance rate at depth 1, 2, ..., of drafts by heads and by prompt lookup.
        estimated_speedup (`float`): How many times as fast as without drafts, from these counts and the costs that
            follow from the sizes of the model. No time is measured.
    """

    num_prompts: int
    num_tokens: int
    tokens_per_forward: float
    acceptance: list[float]
    estimated_speedup: float

    @property
    def pays(self) -> bool:
        """Whether the model should draft by default."""
        return self.estimated_speedup >= MIN_SPEEDUP

    def describe(self) -> str:
        """Return the decision with its figures, as one sentence."""
        decision = "are on by default" if self.pays else "are off by default"
        rates = ", ".join(f"{rate:.2f}" for rate in self.acceptance) or "none made"
        return (
            f"Drafts (`use_mtp`) {decision}: {self.tokens_per_forward:.2f} tokens per forward pass in greedy search "
            f"after {self.num_prompts} validation prompts (acceptance by depth: {rates}), an estimated speed-up of "
            f"{self.estimated_speedup:.2f} (they pay from {MIN_SPEEDUP:g})."
        )

    def figures(self) -> dict[str, Any]:
        """Return the decision and its figures, for `metrics.json`."""
        return {"use_mtp": self.pays, **asdict(self)}


def measure_drafts(model: PreTrainedModel, prompts: Prompts, ensemble: Ensemble) -> DraftGain | None:
    """
    Generate greedily after each prompt with the model's own choice of drafts. Without drafts, the tokens would be the
    same, one per forward pass, so that need not be run. Return `None` without prompts, or if the model cannot draft.
    """
    if not prompts or not len(model.ngram_heads):
        return None
    try:
        statistics = greedy_drafts(model, prompts, DECIDING_TOKENS, **ensemble_arguments(ensemble))
    except CannotDraft:
        return None
    return DraftGain(
        num_prompts=len(prompts),
        num_tokens=statistics.num_tokens,
        tokens_per_forward=statistics.tokens_per_forward,
        acceptance=statistics.acceptance,
        estimated_speedup=statistics.estimated_speedup,
    )


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
