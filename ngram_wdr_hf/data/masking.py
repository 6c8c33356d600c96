"""Masked words: which words of a text are to be guessed, and what stands in their place."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset as TorchIterableDataset
from transformers import PreTrainedTokenizerBase

from ..method.documents import IGNORE_INDEX
from .errors import InputError
from .stream import StreamedBlocks, TokenStream, TrainingBlocks

KINDS = ("token", "span")
# SpanBERT's spans: the chance that a span ends after a word, and the longest.
SPAN_END = 0.2
LONGEST_SPAN = 10
# BERT's replacements: so many of the masked words become the mask, so many another word; the others stay.
MASK_SHARE, OTHER_SHARE = 0.8, 0.1
# What stands around every block.
FRAME = 2


@dataclass(frozen=True)
class Masking:
    r"""
    Args:
        tokenizer (`PreTrainedTokenizerBase`): Has a mask, and a token for the beginning and for the end of a text.
        kind (`str`, *optional*, defaults to `"token"`): `"token"`: each on its own; `"span"`: some words in a row, in
            lengths as SpanBERT has them, which meet the same fate.
        probability (`float`, *optional*, defaults to 0.15): The share of words that are masked.
    """

    tokenizer: PreTrainedTokenizerBase
    kind: str = "token"
    probability: float = 0.15

    def __post_init__(self):
        names = ("mask_token", "cls_token", "sep_token", "pad_token")
        missing = [f"`{name}`" for name in names if getattr(self.tokenizer, name) is None]
        if missing:
            raise InputError(
                f"The tokenizer has no {' and no '.join(missing)}, which masked language modeling needs: choose "
                "another `--tokenizer`, or leave it out to have one trained."
            )

    def frame(self, words: torch.LongTensor) -> torch.LongTensor:
        """The words of a block between the tokens that begin and end a text."""
        begin, end = (torch.tensor([i]) for i in (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id))
        return torch.cat([begin, words, end])

    def __call__(
        self, input_ids: torch.LongTensor, generator: torch.Generator
    ) -> tuple[torch.LongTensor, torch.LongTensor]:
        """The ids `(T,)` with masked words, and the labels: what these words were, -100 elsewhere."""
        special = torch.tensor(self.tokenizer.all_special_ids)
        is_word = ~torch.isin(input_ids, special)
        num_masked = max(1, round(self.probability * int(is_word.sum()))) if is_word.any() else 0
        spans = self._spans(is_word, num_masked, generator)
        is_masked = spans >= 0
        labels = input_ids.masked_fill(~is_masked, IGNORE_INDEX)
        # One draw for each span: what it becomes.
        fate = torch.rand(len(input_ids), generator=generator)[spans.clamp(min=0)]
        others = torch.randint(len(self.tokenizer), input_ids.shape, generator=generator)
        masked = input_ids.masked_fill(is_masked & (fate < MASK_SHARE), self.tokenizer.mask_token_id)
        becomes_other = is_masked & (fate >= MASK_SHARE) & (fate < MASK_SHARE + OTHER_SHARE)
        return torch.where(becomes_other, others, masked), labels

    def _spans(self, is_word: torch.BoolTensor, num_masked: int, generator: torch.Generator) -> torch.LongTensor:
        """For every token the number of the span that masks it, -1 for those that stay."""
        spans = torch.full(is_word.shape, -1)
        if self.kind == "token":
            chances = torch.rand(is_word.shape, generator=generator).masked_fill(~is_word, -1.0)
            chosen = chances.topk(num_masked).indices
            spans[chosen] = torch.arange(num_masked)
            return spans
        number = 0
        while num_masked:
            free = (is_word & (spans < 0)).nonzero()[:, 0]
            begin = int(free[torch.randint(len(free), (1,), generator=generator)])
            ends = torch.rand(LONGEST_SPAN, generator=generator) < SPAN_END
            length = min(int(ends.int().argmax()) + 1 if ends.any() else LONGEST_SPAN, num_masked)
            stop = begin
            while stop < min(begin + length, len(spans)) and is_word[stop] and spans[stop] < 0:
                stop += 1
            spans[begin:stop] = number
            num_masked, number = num_masked - (stop - begin), number + 1
        return spans

    def seeded(self, words: torch.LongTensor, *seeds: int) -> dict[str, torch.Tensor]:
        """A block, framed and masked, always alike for the same seeds."""
        # A hash of integers is the same in every process.
        generator = torch.Generator().manual_seed(hash(seeds) % 2**63)
        masked, labels = self(self.frame(words), generator)
        return {"input_ids": masked, "labels": labels}


class MaskedBlocks(TorchDataset):
    """Blocks to train on, of `block_size` tokens with their frame, masked anew in every epoch."""

    def __init__(self, stream: TokenStream, block_size: int, masking: Masking, seed: int):
        self.blocks = TrainingBlocks(stream, block_size - FRAME)
        self.masking = masking
        self.seed = seed
        # Shared with the processes that may load the data, and live on from epoch to epoch.
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
    The same from text that is read as it comes.

    Args:
        blocks (`StreamedBlocks`): What is masked.
        masking (`Masking`): How.
        seed (`int`): For the masks.
        repeats (`bool`, *optional*, defaults to `False`): Whether the text begins again at its end, masked anew.
    """

    def __init__(self, blocks: StreamedBlocks, masking: Masking, seed: int, repeats: bool = False):
        self.blocks = blocks
        self.masking = masking
        self.seed = seed
        self.repeats = repeats
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for epoch in itertools.count(self.epoch):
            self.blocks.set_epoch(epoch)
            i = -1
            for i, block in enumerate(self.blocks):
                yield self.masking.seeded(block["input_ids"], self.seed, epoch, i)
            if i < 0 or not self.repeats:
                return


class MaskedText(TorchDataset):
    """
    A whole text in blocks of `block_size` tokens with their frame, the last one filled up, always masked in the same
    way: what a masked language model is evaluated on.
    """

    labels_name = "labels"

    def __init__(self, stream: TokenStream, block_size: int, masking: Masking):
        self.stream = stream
        self.block_size = min(block_size, len(stream) + FRAME)
        self.masking = masking

    def __len__(self) -> int:
        return -(-len(self.stream) // (self.block_size - FRAME))

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        if not 0 <= i < len(self):
            raise IndexError(f"There is no number {i}: there are {len(self)}.")
        size = self.block_size - FRAME
        block = self.masking.seeded(self.stream[i * size : (i + 1) * size], i)
        missing = self.block_size - len(block["input_ids"])
        fill = {"input_ids": self.masking.tokenizer.pad_token_id, "labels": IGNORE_INDEX}
        padded = {name: torch.nn.functional.pad(ids, (0, missing), value=fill[name]) for name, ids in block.items()}
        is_real = torch.arange(self.block_size) < self.block_size - missing
        return {**padded, "attention_mask": is_real.long()}
