"""Masking for masked language models: which tokens are masked, and what replaces them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from transformers import PreTrainedTokenizerBase

from ..method.documents import IGNORE_INDEX
from .errors import InputError
from .token_stream import StreamedBlocks, TokenStream, TrainingBlocks

KINDS = ("token", "span")
# SpanBERT: the probability that a span ends after a token, and the maximum span length.
SPAN_END = 0.2
LONGEST_SPAN = 10
# BERT: the shares of masked tokens that become the mask token or a random token; the rest stay unchanged.
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
# The [CLS] and [SEP] tokens around every block.
FRAME = 2


@dataclass(frozen=True)
class Masking:
    """
    BERT's masking of single tokens, or with the kind `"span"` SpanBERT's of spans of 1 to 10 tokens. `probability` is
    the share of masked tokens, rounded, at least one token. Of them, 80% become the mask token, 10% a random token,
    and 10% stay as they are, all tokens of a span alike; all are targets. Special tokens are never masked.
    """

    tokenizer: PreTrainedTokenizerBase
    kind: str = "token"
    probability: float = 0.15

    def __post_init__(self):
        names = ("mask_token", "cls_token", "sep_token", "pad_token")
        missing = [f"`{name}`" for name in names if getattr(self.tokenizer, name) is None]
        if missing:
            raise InputError(f"The tokenizer has no {' and no '.join(missing)} to mask a text: choose another.")

    def __call__(
        self, input_ids: torch.LongTensor, generator: torch.Generator
    ) -> tuple[torch.LongTensor, torch.LongTensor]:
        """Return a block, `(T,)`, with masks, and the labels `(T,)`: masked tokens, -100 elsewhere."""
        is_maskable = ~torch.isin(input_ids, torch.tensor(self.tokenizer.all_special_ids))
        num_masked = max(1, round(self.probability * int(is_maskable.sum()))) if is_maskable.any() else 0
        spans = self._spans(is_maskable, num_masked, generator)
        is_masked = spans >= 0
        # One random number per span decides its replacement.
        draws = torch.rand(len(input_ids), generator=generator)[spans.clamp(min=0)]
        random_tokens = torch.randint(len(self.tokenizer), input_ids.shape, generator=generator)
        masked = input_ids.masked_fill(is_masked & (draws < MASK_SHARE), self.tokenizer.mask_token_id)
        becomes_random = is_masked & (draws >= MASK_SHARE) & (draws < MASK_SHARE + RANDOM_SHARE)
        return torch.where(becomes_random, random_tokens, masked), input_ids.masked_fill(~is_masked, IGNORE_INDEX)

    def _spans(self, is_maskable: torch.BoolTensor, num_masked: int, generator: torch.Generator) -> torch.LongTensor:
        """Return for each position the index of its span, -1 if it is not masked. A single token is a span, too."""
        spans = torch.full(is_maskable.shape, -1)
        if self.kind == "token":
            chances = torch.rand(is_maskable.shape, generator=generator).masked_fill(~is_maskable, -1.0)
            spans[chances.topk(num_masked).indices] = torch.arange(num_masked)
            return spans
        number = 0
        while num_masked:
            free = (is_maskable & (spans < 0)).nonzero()[:, 0]
            begin = int(free[torch.randint(len(free), (1,), generator=generator)])
            ends = torch.rand(LONGEST_SPAN, generator=generator) < SPAN_END
            length = min(int(ends.int().argmax()) + 1 if ends.any() else LONGEST_SPAN, num_masked)
            # Up to the next token that is special or masked already.
            length = int((is_maskable & (spans < 0))[begin : begin + length].cumprod(0).sum())
            spans[begin : begin + length] = number
            num_masked, number = num_masked - length, number + 1
        return spans

    def seeded(self, tokens: torch.LongTensor, *seeds: int) -> dict[str, torch.Tensor]:
        """Frame the tokens of a block by CLS and SEP and mask them. The same seeds give the same masks."""
        begin, end = (torch.tensor([i]) for i in (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id))
        (seed,) = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
        input_ids, labels = self(torch.cat([begin, tokens, end]), torch.Generator().manual_seed(int(seed)))
        return {"input_ids": input_ids, "labels": labels}


class MaskedBlocks(TrainingBlocks):
    """Blocks of `block_size` tokens with CLS and SEP. Masks depend on the seed, the index and Trainer's epoch."""

    def __init__(self, stream: TokenStream, block_size: int, masking: Masking, seed: int):
        super().__init__(stream, block_size - FRAME)
        self.masking = masking
        self.seed = seed
        # Shared with data loader workers that persist over epochs.
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return self.masking.seeded(super().__getitem__(i)["input_ids"], self.seed, int(self.epoch), i)


class StreamedMaskedBlocks(TorchIterableDataset):
    """The blocks of a streamed text, with CLS, SEP and masks, new ones in every pass."""

    def __init__(self, blocks: StreamedBlocks, masking: Masking, seed: int):
        self.blocks = blocks
        self.masking = masking
        self.seed = seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for i, block in enumerate(self.blocks):
            yield self.masking.seeded(block["input_ids"], self.seed, i)


class MaskedText(TorchDataset):
    """A text for evaluation, in blocks with CLS and SEP; the last one is padded. Masks depend on the index only."""

    labels_name = "labels"
    is_batched = False

    def __init__(self, stream: TokenStream, block_size: int, masking: Masking):
        self.stream = stream
        self.block_size = min(block_size, len(stream) + FRAME)
        self.masking = masking

    def __len__(self) -> int:
        return -(-len(self.stream) // (self.block_size - FRAME))

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        i, size = range(len(self))[i], self.block_size - FRAME
        block = self.masking.seeded(self.stream[i * size : (i + 1) * size], i)
        missing = (0, self.block_size - len(block["input_ids"]))
        return {
            "input_ids": F.pad(block["input_ids"], missing, value=self.masking.tokenizer.pad_token_id),
            "labels": F.pad(block["labels"], missing, value=IGNORE_INDEX),
            "attention_mask": F.pad(torch.ones_like(block["labels"]), missing),
        }
