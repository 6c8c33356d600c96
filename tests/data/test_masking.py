"""Which tokens are masked, and what replaces them."""

import itertools

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from ngram_wdr_hf.data.masking import FRAME, MaskedBlocks, MaskedText, Masking, StreamedMaskedBlocks
from ngram_wdr_hf.data.token_stream import StreamedBlocks
from ngram_wdr_hf.data.tokenizers import train_masked_tokenizer
from tests.support.masked import some_ids, stream_of

WORDS = [f"word{letter}{other}" for letter in "abcdefgh" for other in "abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_masked_tokenizer([" ".join(WORDS)] * 3, 500)


def masked(masking, ids, seed=0):
    return masking(ids, torch.Generator().manual_seed(seed))


def unmasked(block):
    return torch.where(block["labels"] == -100, block["input_ids"], block["labels"])


@pytest.mark.parametrize("kind", ["token", "span"])
@pytest.mark.parametrize("probability", [0.15, 0.25])
def test_masked_tokens_and_their_replacements(tokenizer, kind, probability):
    """80 % become the mask, 10 % a random token, 10 % stay, within four standard deviations."""
    masking = Masking(tokenizer, kind, probability)
    kept = hidden = other = total = 0
    for seed in range(60):
        ids = some_ids(tokenizer, 403, seed)
        ids[[0, 40, -1]] = tokenizer.sep_token_id
        changed, labels = masked(masking, ids, seed)
        is_masked = labels != -100
        assert is_masked.sum() == round(probability * 400)
        # Special tokens are never masked, other tokens stay, and labels are the original tokens.
        assert not is_masked[[0, 40, -1]].any()
        assert torch.equal(changed[~is_masked], ids[~is_masked]) and torch.equal(labels[is_masked], ids[is_masked])
        was, now = ids[is_masked], changed[is_masked]
        hidden += int((now == tokenizer.mask_token_id).sum())
        kept += int((now == was).sum())
        other += int(((now != was) & (now != tokenizer.mask_token_id)).sum())
        total += len(was)
    # A span has one draw, so there are fewer draws than tokens.
    draws = total / (1 if kind == "token" else 4)
    for count, share in ((hidden, 0.8), (kept, 0.1), (other, 0.1)):
        assert abs(count / total - share) < 4 * (share * (1 - share) / draws) ** 0.5 + 2 / len(tokenizer)


def test_spans_are_consecutive_tokens_with_one_kind_of_replacement(tokenizer):
    masking, ids, lengths = Masking(tokenizer, "span", 0.3), some_ids(tokenizer, 400), []
    for seed in range(20):
        spans = masking._spans(torch.ones(400, dtype=torch.bool), 120, torch.Generator().manual_seed(seed))
        changed, labels = masked(masking, ids, seed)
        assert torch.equal(labels != -100, spans >= 0)
        for number in range(int(spans.max()) + 1):
            positions = (spans == number).nonzero()[:, 0].tolist()
            assert positions == [*range(positions[0], positions[-1] + 1)]
            lengths.append(len(positions))
            is_hidden = changed[positions] == tokenizer.mask_token_id
            assert is_hidden.all() or not is_hidden.any()
    # SpanBERT: 3.8 tokens on average.
    assert max(lengths) == 10 and 3.0 < sum(lengths) / len(lengths) < 5.0


def test_the_masks_of_a_block(tokenizer):
    """Literal values: another way to seed would change the figures of evaluations."""
    block = Masking(tokenizer, "token", 0.4).seeded(torch.arange(300, 312), 1, 2, 3)
    assert block["input_ids"].tolist() == [1, 195, 301, 302, 303, 304, 122, 3, 3, 308, 309, 310, 311, 2]
    assert block["labels"].tolist() == [299 + i if i in (1, 6, 7, 8, 12) else -100 for i in range(14)]


def test_training_blocks_are_masked_anew_in_every_epoch(tokenizer):
    blocks, other = (MaskedBlocks(stream_of(tokenizer, 120), 32, Masking(tokenizer), seed) for seed in (5, 6))
    assert len(blocks) == 120 // (32 - FRAME)
    item = blocks[1]
    assert all(torch.equal(item[name], again) for name, again in blocks[1].items())
    assert len(item["input_ids"]) == 32
    assert item["input_ids"][0] == tokenizer.cls_token_id and item["input_ids"][-1] == tokenizer.sep_token_id
    assert torch.equal(unmasked(item)[1:-1], blocks.stream[30:60])
    assert not torch.equal(other[1]["labels"], item["labels"])
    # Workers of a data loader see the epoch, too.
    loader = DataLoader(blocks, batch_size=4, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        blocks.set_epoch(epoch)
        (batch,) = loader
        assert torch.equal(batch["labels"], torch.stack([blocks[i]["labels"] for i in range(4)]))
        assert torch.equal(batch["labels"][1], item["labels"]) == (epoch == 0)


@pytest.mark.parametrize("length", [100, 90, 7])
def test_evaluation_text_has_every_token_once(tokenizer, length):
    stream = stream_of(tokenizer, length)
    text = MaskedText(stream, 32, Masking(tokenizer))
    tokens = []
    for block in text:
        assert len(block["input_ids"]) == text.block_size
        is_real = block["attention_mask"] == 1
        assert (block["input_ids"][~is_real] == tokenizer.pad_token_id).all()
        assert (block["labels"][~is_real] == -100).all()
        tokens.append(unmasked(block)[is_real][1:-1])
    assert torch.equal(torch.cat(tokens), stream[:])
    assert torch.equal(text[0]["labels"], MaskedText(stream, 32, Masking(tokenizer))[0]["labels"])
    with pytest.raises(IndexError):
        text[len(text)]


def test_stream_that_repeats(tokenizer):
    rows = Dataset.from_dict({"input_ids": [stream_of(tokenizer, 120)[:].tolist()]}).to_iterable_dataset()
    blocks = StreamedMaskedBlocks(StreamedBlocks(rows, 30), Masking(tokenizer), seed=0)
    masked = list(itertools.islice(blocks, 12))
    for i, block in enumerate(masked):
        assert torch.equal(unmasked(block), unmasked(masked[i % 4]))
        # New masks in every pass.
        assert torch.equal(block["labels"], masked[i % 4]["labels"]) == (i < 4)
    # The same in every iteration.
    for block, again in zip(masked, blocks, strict=False):
        assert torch.equal(block["labels"], again["labels"])


def test_tokenizer_encodes_sentences_and_pairs(tokenizer):
    assert train_masked_tokenizer([" ".join(WORDS)] * 3, 500).get_vocab() == tokenizer.get_vocab()
    one, two = (tokenizer(*texts).input_ids for texts in (("wordaa",), ("wordaa", "wordbb")))
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert one[0] == begin and one[-1] == end and two[: len(one)] == one and two.count(end) == 2
    assert tokenizer.decode(one, skip_special_tokens=True) == "wordaa"
    # Lower case, and no token for the end of a line.
    assert tokenizer(" WORDAA \n \n\twordbb  wordaa\n").input_ids == tokenizer("wordaa wordbb wordaa").input_ids
