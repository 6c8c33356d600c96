"""Masking for masked language models: which tokens are masked, and what replaces them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
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
    r"""
    BERT's or SpanBERT's masking, called with the tokens of one block. Of the masked tokens, 80% become the mask token,
    10% a random token, and 10% stay as they are; all are targets. Special tokens are never masked.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer with a mask, CLS, SEP and padding token.
        kind (`str`, *optional*, defaults to `"token"`): `"token"` masks single tokens; `"span"` masks SpanBERT's
            spans of 1 to 10 tokens, where all tokens of a span get the same kind of replacement.
        probability (`float`, *optional*, defaults to 0.15): The share of a block's tokens that are masked, rounded, at
            least one token.
    """

    tokenizer: PreTrainedTokenizerBase
    kind: str = "token"
    probability: float = 0.15

    def __post_init__(self):
        names = ("mask_token", "cls_token", "sep_token", "pad_token")
        missing = [f"`{name}`" for name in names if getattr(self.tokenizer, name) is None]
        if missing:
            raise InputError(f"The tokenizer has no {' and no '.join(missing)} to mask a text: choose another.")

    def frame(self, tokens: torch.LongTensor) -> torch.LongTensor:
        """Return the tokens `(T,)` of a block between the CLS and the SEP token, `(T + 2,)`."""
        begin, end = (torch.tensor([i]) for i in (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id))
        return torch.cat([begin, tokens, end])

    def __call__(
        self, input_ids: torch.LongTensor, generator: torch.Generator
    ) -> tuple[torch.LongTensor, torch.LongTensor]:
        """
        Mask the tokens of a block, `(T,)`. Return the new ids `(T,)` and the labels `(T,)`: the original ids of masked
        tokens, -100 elsewhere. `generator` makes all random choices.
        """
        special = torch.tensor(self.tokenizer.all_special_ids)
        is_maskable = ~torch.isin(input_ids, special)
        num_masked = max(1, round(self.probability * int(is_maskable.sum()))) if is_maskable.any() else 0
        spans = self._spans(is_maskable, num_masked, generator)
        is_masked = spans >= 0
        labels = input_ids.masked_fill(~is_masked, IGNORE_INDEX)
        # One random number per span decides its replacement.
        draws = torch.rand(len(input_ids), generator=generator)[spans.clamp(min=0)]
        random_tokens = torch.randint(len(self.tokenizer), input_ids.shape, generator=generator)
        masked = input_ids.masked_fill(is_masked & (draws < MASK_SHARE), self.tokenizer.mask_token_id)
        becomes_random = is_masked & (draws >= MASK_SHARE) & (draws < MASK_SHARE + RANDOM_SHARE)
        return torch.where(becomes_random, random_tokens, masked), labels

    def _spans(self, is_maskable: torch.BoolTensor, num_masked: int, generator: torch.Generator) -> torch.LongTensor:
        """
        Choose `num_masked` tokens. Return for each position the index of its span, -1 if it is not masked. For
        `kind="token"`, each masked token is a span.
        """
        spans = torch.full(is_maskable.shape, -1)
        if self.kind == "token":
            chances = torch.rand(is_maskable.shape, generator=generator).masked_fill(~is_maskable, -1.0)
            chosen = chances.topk(num_masked).indices
            spans[chosen] = torch.arange(num_masked)
            return spans
        number = 0
        while num_masked:
            free = (is_maskable & (spans < 0)).nonzero()[:, 0]
            begin = int(free[torch.randint(len(free), (1,), generator=generator)])
            ends = torch.rand(LONGEST_SPAN, generator=generator) < SPAN_END
            length = min(int(ends.int().argmax()) + 1 if ends.any() else LONGEST_SPAN, num_masked)
            stop = begin
            while stop < min(begin + length, len(spans)) and is_maskable[stop] and spans[stop] < 0:
                stop += 1
            spans[begin:stop] = number
            num_masked, number = num_masked - (stop - begin), number + 1
        return spans

    def seeded(self, tokens: torch.LongTensor, *seeds: int) -> dict[str, torch.Tensor]:
        """
        Add CLS and SEP to the tokens of a block and mask them. Return `input_ids` and `labels`. The same seeds give
        the same masks.
        """
        (seed,) = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed))
        masked, labels = self(self.frame(tokens), generator)
        return {"input_ids": masked, "labels": labels}


class MaskedBlocks(TorchDataset):
    """
    Training blocks of `block_size` tokens, CLS and SEP included. An item has `input_ids` and `labels`. Its masks
    depend on the seed, the index and the epoch, which Trainer sets by `set_epoch`. The remainder of the text is
    dropped, unless there is no full block.
    """

    def __init__(self, stream: TokenStream, block_size: int, masking: Masking, seed: int):
        self.blocks = TrainingBlocks(stream, block_size - FRAME)
        self.masking = masking
        self.seed = seed
        # Shared with data loader workers that persist over epochs.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return self.masking.seeded(self.blocks[i]["input_ids"], self.seed, self.epoch, i)


class StreamedMaskedBlocks(TorchIterableDataset):
    r"""
    Masked training blocks of a streamed text, again and again, with new masks in every pass. An item has `input_ids`
    and `labels`.

    Args:
        blocks (`StreamedBlocks`): The blocks to mask, without CLS and SEP, which are added here.
        masking (`Masking`): The masking.
        seed (`int`): The seed of the masks.
    """

    def __init__(self, blocks: StreamedBlocks, masking: Masking, seed: int):
        self.blocks = blocks
        self.masking = masking
        self.seed = seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for i, block in enumerate(self.blocks):
            yield self.masking.seeded(block["input_ids"], self.seed, i)


class MaskedText(TorchDataset):
    """
    A text for evaluation, in blocks of `block_size` tokens, CLS and SEP included. An item has `input_ids`, `labels`
    and `attention_mask`. Its masks depend only on its index. The last block is padded; a text shorter than a block is
    one block without padding.
    """

    labels_name = "labels"
    is_batched = False

    def __init__(self, stream: TokenStream, block_size: int, masking: Masking):
        self.stream = stream
        self.block_size = min(block_size, len(stream) + FRAME)
        self.masking = masking

    def __len__(self) -> int:
        return -(-len(self.stream) // (self.block_size - FRAME))

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        i = range(len(self))[i]
        size = self.block_size - FRAME
        block = self.masking.seeded(self.stream[i * size : (i + 1) * size], i)
        missing = self.block_size - len(block["input_ids"])
        fill = {"input_ids": self.masking.tokenizer.pad_token_id, "labels": IGNORE_INDEX}
        padded = {name: torch.nn.functional.pad(ids, (0, missing), value=fill[name]) for name, ids in block.items()}
        is_real = torch.arange(self.block_size) < self.block_size - missing
        return {**padded, "attention_mask": is_real.long()}
