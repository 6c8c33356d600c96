"""Which tokens are masked, and what replaces them."""

import itertools

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.masking import FRAME, MaskedBlocks, MaskedText, Masking, StreamedMaskedBlocks
from ngram_wdr_hf.data.token_stream import StreamedBlocks
from ngram_wdr_hf.data.tokenizers import train_masked_tokenizer, train_word_tokenizer
from tests.support.errors import raises_naming
from tests.support.masked import some_ids, stream_of

WORDS = [f"word{letter}{other}" for letter in "abcdefgh" for other in "abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_masked_tokenizer([" ".join(WORDS)] * 3, 500)


def masked(masking, ids, seed=0):
    return masking(ids, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["token", "span"])
@pytest.mark.parametrize("probability", [0.15, 0.25])
def test_share_of_masked_tokens(tokenizer, kind, probability):
    masking = Masking(tokenizer, kind, probability)
    ids = some_ids(tokenizer, 101)
    ids[[0, 40, -1]] = tokenizer.sep_token_id
    for seed in range(5):
        changed, labels = masked(masking, ids, seed)
        is_masked = labels != -100
        assert is_masked.sum() == round(probability * 98)
        # Special tokens are never masked, other tokens stay, and labels are the original tokens.
        assert not is_masked[[0, 40, -1]].any()
        assert torch.equal(changed[~is_masked], ids[~is_masked]) and torch.equal(labels[is_masked], ids[is_masked])


@pytest.mark.parametrize("kind", ["token", "span"])
def test_replacements_of_masked_tokens(tokenizer, kind):
    """80 % become the mask, 10 % a random token, 10 % stay, within four standard deviations."""
    masking = Masking(tokenizer, kind, 0.25)
    kept = hidden = other = total = 0
    for seed in range(60):
        ids = some_ids(tokenizer, 400, seed)
        changed, labels = masked(masking, ids, seed)
        was, now = ids[labels != -100], changed[labels != -100]
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


@pytest.mark.parametrize(
    ("kind", "expected", "masked_positions"),
    [
        ("token", [1, 195, 301, 302, 303, 304, 122, 3, 3, 308, 309, 310, 311, 2], [1, 6, 7, 8, 12]),
        ("span", [1, 300, 3, 302, 303, 3, 3, 3, 3, 308, 309, 310, 311, 2], [2, 5, 6, 7, 8]),
    ],
)
def test_the_masks_of_a_block(tokenizer, kind, expected, masked_positions):
    """Literal values: another way to seed would change the figures of evaluations."""
    tokens = torch.arange(300, 312)
    block = Masking(tokenizer, kind, 0.4).seeded(tokens, 1, 2, 3)
    assert block["input_ids"].tolist() == expected
    labels = [299 + i if i in masked_positions else -100 for i in range(14)]
    assert block["labels"].tolist() == labels


def test_training_blocks_are_masked_anew_in_every_epoch(tokenizer):
    masking = Masking(tokenizer)
    blocks = MaskedBlocks(stream_of(tokenizer, 100), 32, masking, seed=5)
    assert len(blocks) == 100 // (32 - FRAME)
    item, again = blocks[1], blocks[1]
    assert all(torch.equal(item[name], again[name]) for name in item)
    assert len(item["input_ids"]) == 32
    assert item["input_ids"][0] == tokenizer.cls_token_id and item["input_ids"][-1] == tokenizer.sep_token_id
    blocks.set_epoch(1)
    assert not torch.equal(blocks[1]["labels"], item["labels"])
    other = MaskedBlocks(stream_of(tokenizer, 100), 32, masking, seed=6)
    assert not torch.equal(other[1]["labels"], item["labels"])


@pytest.mark.parametrize("length", [100, 90, 7])
def test_evaluation_text_has_every_token_once(tokenizer, length):
    stream = stream_of(tokenizer, length)
    text = MaskedText(stream, 32, Masking(tokenizer))
    tokens = []
    for block in text:
        assert len(block["input_ids"]) == text.block_size
        is_real = block["attention_mask"] == 1
        assert (block["input_ids"][~is_real] == tokenizer.pad_token_id).all()
        ids = torch.where(block["labels"] == -100, block["input_ids"], block["labels"])[is_real]
        tokens.append(ids[1:-1])
    assert torch.equal(torch.cat(tokens), stream[0:length])
    assert torch.equal(text[0]["labels"], MaskedText(stream, 32, Masking(tokenizer))[0]["labels"])
    with pytest.raises(IndexError):
        text[len(text)]


def test_data_loader_workers_see_a_new_epoch(tokenizer):
    blocks = MaskedBlocks(stream_of(tokenizer, 120), 32, Masking(tokenizer), seed=0)
    loader = DataLoader(blocks, batch_size=4, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        blocks.set_epoch(epoch)
        (batch,) = loader
        assert torch.equal(batch["labels"], torch.stack([blocks[i]["labels"] for i in range(4)]))
        tokens = blocks.stream[2 * 30 : 3 * 30]
        assert torch.equal(blocks[2]["labels"], blocks.masking.seeded(tokens, 0, epoch, 2)["labels"])


def test_stream_that_repeats(tokenizer):
    rows = Dataset.from_dict({"input_ids": [stream_of(tokenizer, 120)[0:120].tolist()]}).to_iterable_dataset()
    blocks = StreamedMaskedBlocks(StreamedBlocks(rows, 30), Masking(tokenizer), seed=0)
    masked = list(itertools.islice(blocks, 12))
    for i, block in enumerate(masked):
        tokens = torch.where(block["labels"] == -100, block["input_ids"], block["labels"])
        first = masked[i % 4]
        assert torch.equal(tokens, torch.where(first["labels"] == -100, first["input_ids"], first["labels"]))
        # New masks in every pass.
        assert torch.equal(block["labels"], first["labels"]) == (i < 4)
    # The same in every iteration.
    for block, again in zip(masked, blocks, strict=False):
        assert torch.equal(block["labels"], again["labels"])


def test_the_tokenizer_has_no_token_for_the_end_of_a_line(tokenizer):
    text = " wordaa \n \n\twordbb  wordaa\n"
    assert tokenizer(text).input_ids == tokenizer("wordaa wordbb wordaa").input_ids
    assert tokenizer("\n", add_special_tokens=False).input_ids == []


def test_tokenizer_without_mask_token():
    with raises_naming(InputError, "tokenizer", "mask_token", "cls_token"):
        Masking(train_word_tokenizer(["a b c"]))


def test_tokenizer_training_is_deterministic(tokenizer):
    again = train_masked_tokenizer([" ".join(WORDS)] * 3, 500)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_tokenizer_encodes_sentences_and_pairs(tokenizer):
    one, two = (tokenizer(*texts).input_ids for texts in (("wordaa",), ("wordaa", "wordbb")))
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert one[0] == begin and one[-1] == end and two[: len(one)] == one and two.count(end) == 2
    assert tokenizer.decode(one, skip_special_tokens=True) == "wordaa"
    assert tokenizer("WORDAA").input_ids == one
    assert tokenizer("wordaa", return_tensors="pt").keys() == {"input_ids", "attention_mask"}
