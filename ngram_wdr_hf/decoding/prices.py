"""What drafts cost, from the sizes of the model."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig


@dataclass(frozen=True)
class DeviceSpeed:
    r"""
    How fast a type of device does what decoding consists of, relative to reading weights. Decoding one token is bound
    by memory: every weight is read once. All other work is expressed by the bytes that could be read meanwhile. These
    are ratios of a machine's speeds, so the order of magnitude counts.

    Args:
        tokens_per_read (`int`):
            How many tokens can be multiplied with a matrix while its weights are read once: the ratio of arithmetic to
            memory speed.
        min_tokens (`int`): A product of a matrix with fewer vectors than this is not faster than with this number.
        packing (`float`):
            How many reads it takes to rearrange the weights first. This is done for many tokens, which are then
            multiplied faster.
        tokens_per_packed_read (`int`): As `tokens_per_read`, for rearranged weights.
        block_bytes (`float`):
            The time to call one block, that is the attention or the MLP of a layer, or a head: Python and small
            operations.
        sampling_bytes (`float`):
            The time to sample from the scores of one position, per token of the vocabulary: softmax and drawing.
        sorting_bytes (`float`): The same for a logits processor that sorts the scores, such as top-p.
    """

    tokens_per_read: int
    min_tokens: int
    packing: float
    tokens_per_packed_read: int
    block_bytes: float
    sampling_bytes: float
    sorting_bytes: float


# Measured in float32 on two threads, with [`FewTokenProducts`].
CPU_SPEED = DeviceSpeed(
    tokens_per_read=4,
    min_tokens=2,
    packing=2.5,
    tokens_per_packed_read=9,
    block_bytes=3e6,
    sampling_bytes=300.0,
    sorting_bytes=1500.0,
)
# From data sheets, not measured: 300 TFLOP/s in half precision at 1.5 TB/s, and 0.1 ms to call a block.
ACCELERATOR_SPEED = DeviceSpeed(
    tokens_per_read=200,
    min_tokens=1,
    packing=0.0,
    tokens_per_packed_read=200,
    block_bytes=1.5e8,
    sampling_bytes=100.0,
    sorting_bytes=500.0,
)
# A forward pass copies the cache to append to it, and attention reads the copy. Shifting rows costs about as much.
CACHE_READS = 3
# The work around a forward pass with drafts, in blocks: an attention mask, and dropping rejected drafts.
MASK_BLOCKS = 2
# Running a head, in blocks: the head itself, and choosing its token.
HEAD_BLOCKS = 2
# Prices are derived anew when the text has grown by this number of tokens.
COLUMNS_PER_PRICE = 64


class PriceList(NamedTuple):
    r"""
    The costs of drafting at some batch size, as shares of a plain forward pass, which reads one token per row.

    Args:
        heads (`list[float]`): The cost of running head 1, 2, ...
        checks (`list[float]`): The cost of checking 0, 1, ... drafts per row.
    """

    heads: list[float]
    checks: list[float]

    @property
    def all_heads(self) -> float:
        """The cost of drafting with all heads."""
        return sum(self.heads) + self.checks[len(self.heads)]


class DraftPrices:
    r"""
    The costs of drafting, from sizes alone: the weights of the model, of its heads and of the draft vocabulary, the
    batch size, the number of drafts, the cache.

    Args:
        model (`PreTrainedModel`): A model with N-gram heads.
        generation_config ([`GenerationConfig`]): The options of the generation.
        num_heads (`int`): The number of heads to draft with.
        max_drafts (`int`): The maximum number of drafts per row, at least `num_heads`.
        draft_vocab_size (`int`): The number of tokens that the heads choose drafts from.

    Attributes:
        cache_bytes (`float`): The size of the cache per token of a row; 0 until it is set.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        generation_config: GenerationConfig,
        num_heads: int,
        max_drafts: int,
        draft_vocab_size: int,
    ):
        self.speed = speed = speed_of(model)
        self.max_drafts = max_drafts
        # Of an embedding table, a forward pass reads one vector per token.
        modules = [module for module in model.get_decoder().modules() if not isinstance(module, nn.Embedding)]
        output = model.get_output_embeddings().weight
        weights = {id(weight): weight for module in modules for weight in module.parameters(recurse=False)}
        self.forward_bytes = sum(map(_bytes_of, {**weights, id(output): output}.values()))
        # The layers are the longest list of modules. Each is an attention and an MLP.
        self.num_blocks = 2 * max((len(module) for module in modules if isinstance(module, nn.ModuleList)), default=1)
        list_bytes = _bytes_of(output) * draft_vocab_size / model.ngram_vocab_size
        heads = model.ngram_heads[:num_heads]
        self.head_bytes = [sum(map(_bytes_of, head.parameters())) + list_bytes for head in heads]
        # The cost of choosing one token; in greedy search it is small.
        sorts = (generation_config.top_p or 1.0) < 1.0 or generation_config.min_p is not None
        bytes_per_score = (speed.sampling_bytes + sorts * speed.sorting_bytes) if generation_config.do_sample else 0.0
        self.choice_bytes = bytes_per_score * model.ngram_vocab_size
        self.draft_choice_bytes = bytes_per_score * draft_vocab_size
        self.cache_bytes = 0.0
        self.price_lists: dict[tuple[int, int], PriceList] = {}

    def of(self, num_rows: int, num_columns: int) -> PriceList:
        """Return the prices for a batch of `num_rows` rows, with about `num_columns` tokens each in the cache."""
        key = num_rows, num_columns // COLUMNS_PER_PRICE
        if key not in self.price_lists:
            self.price_lists[key] = self._derive(num_rows, num_columns)
        return self.price_lists[key]

    def _derive(self, num_rows: int, num_columns: int) -> PriceList:
        speed, cache_work = self.speed, CACHE_READS * num_rows * num_columns * self.cache_bytes
        forwards = []
        for num_drafts in range(self.max_drafts + 1):
            num_tokens = num_rows * (1 + num_drafts)
            work = self._product_with(self.forward_bytes, num_tokens) + num_tokens * self.choice_bytes
            # Rows that accept different numbers of drafts are shifted in the cache.
            num_copies = 2 if num_drafts and num_rows > 1 else 1
            num_blocks = self.num_blocks + (MASK_BLOCKS if num_drafts else 0)
            forwards.append(work + num_blocks * speed.block_bytes + num_copies * cache_work)
        plain = forwards[0]
        extra = HEAD_BLOCKS * speed.block_bytes + num_rows * self.draft_choice_bytes
        heads = [(self._product_with(head, num_rows) + extra) / plain for head in self.head_bytes]
        return PriceList(heads, [forward / plain - 1 for forward in forwards])

    def _product_with(self, weight_bytes: float, num_tokens: int) -> float:
        """Return the cost of multiplying weights with the vectors of some tokens, in bytes read."""
        speed, num_tokens = self.speed, max(num_tokens, self.speed.min_tokens)
        packed = speed.packing + num_tokens / speed.tokens_per_packed_read
        return weight_bytes * (1 + min(num_tokens / speed.tokens_per_read, packed))


class ThresholdPrices:
    r"""
    Given costs instead of derived ones, for any batch.

    Args:
        threshold (`float`): The cost of a head's draft: half of it for running the head, half for checking the draft.
        num_heads, max_drafts (`int`): As in [`DraftPrices`].
    """

    def __init__(self, threshold: float, num_heads: int, max_drafts: int):
        # As in `DraftPrices`, but without effect.
        self.cache_bytes = 0.0
        half = threshold / 2
        self.price_list = PriceList([half] * num_heads, [half * number for number in range(max_drafts + 1)])

    def of(self, num_rows: int, num_columns: int) -> PriceList:
        return self.price_list


def speed_of(model: PreTrainedModel) -> DeviceSpeed:
    """Return the speed of the device of a model."""
    return CPU_SPEED if model.device.type == "cpu" else ACCELERATOR_SPEED


def _bytes_of(weight: nn.Parameter) -> int:
    return weight.numel() * weight.element_size()
