"""What drafts cost, derived from the sizes of the model, its heads and the batch."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from torch import nn
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig


class DeviceSpeed(NamedTuple):
    r"""
    How fast a device does what decoding consists of. Decoding a token is bound by memory: every weight is read once.
    All other work is expressed by the bytes that could be read meanwhile, of which the order of magnitude counts.

    Args:
        tokens_per_read (`int`): How many vectors can be multiplied with a matrix while its weights are read once.
        min_tokens (`int`): A product with fewer vectors than this is not faster than with this number.
        call_bytes (`float`): The time to call the attention or the MLP of a layer, or a head.
    """

    tokens_per_read: int
    min_tokens: int
    call_bytes: float


# Measured in float32 on two threads, with [`CpuProducts`].
CPU = DeviceSpeed(tokens_per_read=4, min_tokens=2, call_bytes=3e6)
# From data sheets, not measured: 300 TFLOP/s in half precision at 1.5 TB/s, and 0.1 ms a call.
ACCELERATOR = DeviceSpeed(tokens_per_read=200, min_tokens=1, call_bytes=1.5e8)
# The time to sample from the scores of one position, per token of the vocabulary; and to sort them, as top-p does.
SCORE_BYTES, SORT_BYTES = 300.0, 1500.0
# A forward pass copies the cache to append to it, and attention reads the copy. Shifting rows costs about as much.
CACHE_READS = 3
# Besides the model: an attention mask, and dropping rejected drafts; running a head, and choosing its token.
CALLS_PER_CHECK = CALLS_PER_HEAD = 2
# Costs are derived anew when the text has grown by this number of tokens.
COLUMNS_PER_COST = 64


class Costs(NamedTuple):
    """
    The costs of drafting at some batch size, as shares of a plain forward pass, which reads one token per row:
    `heads` of running head 1, 2, ..., `checks` of checking 0, 1, ... drafts per row.
    """

    heads: list[float]
    checks: list[float]


class DraftCosts:
    r"""
    The costs of drafting with a model.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        generation_config ([`GenerationConfig`]): The options of the generation.
        num_heads (`int`): The number of heads to draft with.
        max_drafts (`int`): The maximum number of drafts per row, at least `num_heads`.
        draft_vocab_size (`int`): The number of tokens that the heads choose drafts from.
        threshold (`float`, *optional*): A given cost of a head's draft, half of it for running the head.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        generation_config: GenerationConfig,
        num_heads: int,
        max_drafts: int,
        draft_vocab_size: int,
        threshold: float | None = None,
    ):
        self.threshold, self.max_drafts = threshold, max_drafts
        self.speed = CPU if model.device.type == "cpu" else ACCELERATOR
        # Of an embedding table, a forward pass reads one vector per token.
        modules = [module for module in model.get_decoder().modules() if not isinstance(module, nn.Embedding)]
        output = model.get_output_embeddings().weight
        weights = [weight for module in modules for weight in module.parameters(recurse=False)]
        self.forward_bytes = _bytes_of({*weights, output})
        # The layers are the longest list of modules. Each is an attention and an MLP.
        self.num_calls = 2 * max((len(module) for module in modules if isinstance(module, nn.ModuleList)), default=1)
        shortlist_bytes = _bytes_of([output]) * draft_vocab_size / model.ngram_vocab_size
        self.head_bytes = [_bytes_of(head.parameters()) + shortlist_bytes for head in model.ngram_heads[:num_heads]]
        # In greedy search, choosing a token costs little.
        sorts = (generation_config.top_p or 1.0) < 1.0 or generation_config.min_p is not None
        score_bytes = (SCORE_BYTES + sorts * SORT_BYTES) if generation_config.do_sample else 0.0
        self.choice_bytes = score_bytes * model.ngram_vocab_size
        self.draft_choice_bytes = score_bytes * draft_vocab_size
        # The size of the cache per token of a row, once it is known.
        self.cache_bytes = 0.0
        self._costs_of = cache(self._derive)

    def at(self, num_rows: int, num_columns: int) -> Costs:
        """Return the costs for a batch of `num_rows` rows, with about `num_columns` tokens each in the cache."""
        return self._costs_of(num_rows, num_columns // COLUMNS_PER_COST * COLUMNS_PER_COST)

    def _derive(self, num_rows: int, num_columns: int) -> Costs:
        if self.threshold is not None:
            half = self.threshold / 2
            return Costs([half] * len(self.head_bytes), [half * number for number in range(self.max_drafts + 1)])
        cache_work = CACHE_READS * num_rows * num_columns * self.cache_bytes
        forwards = []
        for num_drafts in range(self.max_drafts + 1):
            num_tokens = num_rows * (1 + num_drafts)
            work = self._product(self.forward_bytes, num_tokens) + num_tokens * self.choice_bytes
            # Rows that accept different numbers of drafts are shifted in the cache.
            num_copies = 2 if num_drafts and num_rows > 1 else 1
            num_calls = self.num_calls + (CALLS_PER_CHECK if num_drafts else 0)
            forwards.append(work + num_calls * self.speed.call_bytes + num_copies * cache_work)
        plain = forwards[0]
        extra = CALLS_PER_HEAD * self.speed.call_bytes + num_rows * self.draft_choice_bytes
        heads = [(self._product(head, num_rows) + extra) / plain for head in self.head_bytes]
        return Costs(heads, [forward / plain - 1 for forward in forwards])

    def _product(self, weight_bytes: float, num_tokens: int) -> float:
        """Return the cost of multiplying weights with the vectors of some tokens, in bytes read."""
        return weight_bytes * (1 + max(num_tokens, self.speed.min_tokens) / self.speed.tokens_per_read)


def _bytes_of(weights: Iterable[nn.Parameter]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)
