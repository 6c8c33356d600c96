"""Streams of tokens and training blocks, against slow loops."""

import itertools
import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from ngram_wdr_hf.data import token_stream as stream
from ngram_wdr_hf.data.text import hold_out, load_text_files
from ngram_wdr_hf.data.token_stream import StreamedBlocks, TokenStream, TrainingBlocks, tokenize
from ngram_wdr_hf.data.tokenizers import (
    end_token_id,
    start_token_id,
    texts_of,
    train_bpe_tokenizer,
    train_word_tokenizer,
)
from tests.support.texts import TEXT, load, stream_of, write, write_lines


def slow_tokens(text: str) -> list[str]:
    """Return the tokens as PTB and WikiText are scored."""
    return [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]


def tokens_of(rows, tokenizer, **options) -> list[str]:
    return tokenizer.convert_ids_to_tokens(TokenStream.from_rows(tokenize(rows, tokenizer, "train", **options))[:])


def blocks_of(blocks) -> list[list[int]]:
    blocks = list(blocks)
    assert all(torch.equal(block["input_ids"], block["labels"]) for block in blocks)
    return [block["input_ids"].tolist() for block in blocks]


def blocks_of_pass(streamed: StreamedBlocks, number: int = 0) -> list[list[int]]:
    return blocks_of(streamed.read_once(number))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        TEXT.rstrip("\n"),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        "\n" + TEXT,
        "\ufeff" + TEXT,
        "\n\n\n",
        "word",
    ],
)
def test_words_are_counted_as_benchmarks_count_them(tmp_path, content, streaming):
    rows = load(write(tmp_path / "text.txt", content), streaming)
    tokenizer = train_word_tokenizer(texts_of(rows))
    tokens = TokenStream.from_rows(tokenize(rows, tokenizer, "train"))
    expected = slow_tokens(content.removeprefix("\ufeff"))
    assert tokenizer.convert_ids_to_tokens(tokens[:]) == expected
    assert len(tokens) == tokens.num_words == len(expected)
    assert set(tokenizer.get_vocab()) == {"<unk>", "<eos>", *expected}


def test_unknown_words(tmp_path):
    tokenizer = train_word_tokenizer([TEXT])
    rows = load(write(tmp_path / "text.txt", "the bird\nsaw <unk> Dog\n"))
    assert tokens_of(rows, tokenizer) == ["the", "<unk>", "<eos>", "saw", "<unk>", "<unk>", "<eos>"]
    assert tokenizer.unk_token_id == 0 and start_token_id(tokenizer) == end_token_id(tokenizer) == 1


def test_most_frequent_words_are_kept():
    tokenizer = train_word_tokenizer([TEXT], vocab_size=4)
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == ["<unk>", "<eos>", "the", "saw"]
    tokenizer = train_word_tokenizer([TEXT])
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer)))[2:] == ["the", "saw", "dog", "it", "cat"]


ODD_TEXTS = [
    "",
    " ",
    "  two  spaces ",
    "tab\tand\r\nbreaks\r\n\n\n",
    "naïve café, 日本語, עברית, 🤗👩‍👩‍👧",
    "do n't , ca n't . `` '' <eos> <unk>",
    "\x00\x01\x7f\x85\xa0\u2028\ufeff\ufffd",
    "".join(map(chr, range(0x20, 0x500))),
]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_bpe_decodes_back_exactly(text):
    tokenizer = train_bpe_tokenizer(["some words about other words\n"], vocab_size=270)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) <= 270


@pytest.mark.parametrize("train", [train_word_tokenizer, lambda texts: train_bpe_tokenizer(texts, 270)])
def test_tokenizers_survive_saving(tmp_path, train):
    tokenizer = train([TEXT])
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    for text in (TEXT, *ODD_TEXTS):
        ids = loaded(text, add_special_tokens=False)["input_ids"]
        assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded.decode(ids) == tokenizer.decode(ids)
    # The cache key of tokenized text.
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize(
    ("rows", "expected", "num_words"),
    [
        (["a b", "c"], "a b <eos> c <eos>", 5),
        (["a b\n", "c\n"], "a b <eos> c <eos>", 5),
        (["a\nb", "c\n"], "a <eos> b <eos> c <eos>", 6),
        (["a", "", "b\n", "\n"], "a <eos> <eos> b <eos> <eos>", 6),
        # CSV files give `None` for an empty text.
        (["a", None], "a <eos> <eos>", 3),
    ],
)
def test_lines_and_documents(rows, expected, num_words):
    rows = Dataset.from_dict({"text": rows})
    tokenizer = train_word_tokenizer(texts_of(rows))
    assert tokens_of(rows, tokenizer) == tokens_of(rows.to_iterable_dataset(), tokenizer) == expected.split()
    assert TokenStream.from_rows(tokenize(rows, tokenizer, "train")).num_words == num_words


def test_bpe_documents_are_ended_and_lines_are_not():
    tokenizer = train_bpe_tokenizer([TEXT], 300)
    rows = Dataset.from_dict({"text": ["the cat\n", "the dog\n", "saw\nit", "the cat"]})
    tokens = TokenStream.from_rows(tokenize(rows, tokenizer, "train"))
    assert tokenizer.decode(tokens[:]) == "the cat\nthe dog\nsaw\nit<eos>the cat<eos>"
    assert tokens.num_words == 13
    tokenizer.eos_token = None
    assert tokenizer.decode(TokenStream.from_rows(tokenize(rows, tokenizer, "train"))[:]).endswith("itthe cat")


def test_slices_are_those_of_the_list():
    chance = random.Random(0)
    for length, pieces in ((0, 1), (1, 1), (10, 1), (57, 4), (57, 80)):
        tokens = [chance.randrange(100) for _ in range(length)]
        together = stream_of(tokens, pieces)
        assert len(together) == length
        for _ in range(100):
            begin, end = chance.randint(-length - 2, length + 2), chance.randint(-length - 2, length + 2)
            assert together[begin:end].tolist() == tokens[begin:end]
        assert together[:].tolist() == tokens and together[:].dtype == torch.long


def test_processes_and_streaming_give_the_same_tokens(tmp_path):
    path = write_lines(tmp_path / "text.txt", 2500)
    rows = load(path)
    tokenizer = train_word_tokenizer(texts_of(rows))
    parallel = tokenize(rows, tokenizer, "train", num_workers=2)
    assert len(parallel.cache_files) == 2
    assert tokenize(rows, tokenizer, "train").cache_files == parallel.cache_files
    expected = tokenizer.convert_tokens_to_ids(slow_tokens(Path(path).read_text()))
    streamed = TokenStream.from_rows(tokenize(load(path, streaming=True), tokenizer, "train"))
    for tokens in (TokenStream.from_rows(parallel), streamed):
        assert len(tokens.pieces) > 2
        assert tokens[:].tolist() == expected
        assert tokens.num_words == len(tokens) == len(expected)
        for begin in range(0, len(expected), 997):
            assert tokens[begin : begin + 2000].tolist() == expected[begin : begin + 2000]


def test_selected_and_shuffled_rows():
    tokenizer = train_word_tokenizer(["a b c d"])
    rows = Dataset.from_dict({"text": ["a b", "c", "d d d", ""]})
    tokens = tokenize(rows, tokenizer, "train")
    for indices in ([1, 2], [3, 0, 0], []):
        expected = TokenStream.from_rows(tokenize(rows.select(indices), tokenizer, "train"))
        selected = TokenStream.from_rows(tokens.select(indices))
        assert torch.equal(selected[:], expected[:]) and selected.num_words == expected.num_words


def test_tokens_stay_in_their_files(tmp_path):
    """Neither making a stream nor pickling it copies the tokens."""
    rows = load(write_lines(tmp_path / "text.txt", 3000))
    rows = tokenize(rows, train_word_tokenizer(texts_of(rows)), "train")
    allocated = pa.total_allocated_bytes()
    tokens = TokenStream.from_rows(rows)
    assert pa.total_allocated_bytes() == allocated
    assert not any(piece.flags.owndata for piece in tokens.pieces)
    sent = pickle.dumps(tokens)
    assert len(sent) < len(tokens)
    received = pickle.loads(sent)
    assert torch.equal(received[:], tokens[:]) and received.num_words == tokens.num_words
    in_memory = pickle.loads(pickle.dumps(stream_of([1, 2, 3], 2)))
    assert in_memory[:].tolist() == [1, 2, 3] and in_memory.num_words == 3


def test_the_next_run_does_not_tokenize_again(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        stream,
        "_encode",
        lambda *args, encode=stream._encode, **options: calls.append(None) or encode(*args, **options),
    )

    def run(path, num_workers=1, vocab_size=None, is_loaded=False):
        """Run all steps as a new process would; return the number of tokenizer calls and the tokens."""
        splits = hold_out(load_text_files({"train": [path]}), 10)
        tokenizer = train_word_tokenizer(texts_of(splits["train"]), vocab_size)
        if is_loaded:
            tokenizer.save_pretrained(tmp_path)
            tokenizer = AutoTokenizer.from_pretrained(tmp_path)
        before = len(calls)
        streams = [TokenStream.from_rows(tokenize(rows, tokenizer, "train", num_workers)) for rows in splits.values()]
        return len(calls) - before, [tokens[:].tolist() for tokens in streams]

    path = write_lines(tmp_path / "text.txt", 300)
    calls_of_first, tokens = run(path)
    assert calls_of_first > 0
    assert run(path) == run(path, num_workers=2) == run(path, is_loaded=True) == (0, tokens)
    # Another tokenizer or another text is tokenized again.
    calls_of_small, small = run(path, vocab_size=5)
    assert calls_of_small > 0 and small != tokens
    write_lines(tmp_path / "text.txt", 299, seed=1)
    calls_of_changed, changed = run(path)
    assert calls_of_changed > 0 and changed != tokens


def test_slow_tokenizers_have_different_fingerprints():
    """Two slow tokenizers with the same vocabulary can still differ."""

    class Slow:
        is_fast, eos_token_id = False, 0

        def __init__(self, factor):
            self.factor = factor

        def __call__(self, texts, **options):
            return {"input_ids": [[self.factor * len(text)] for text in texts]}

    rows = Dataset.from_dict({"text": ["abc\n"]})
    once, twice = (tokenize(rows, Slow(factor), "train") for factor in (1, 2))
    assert once["input_ids"][:] == [[4]] and twice["input_ids"][:] == [[8]]
    assert once._fingerprint != twice._fingerprint


@pytest.mark.parametrize("length", [0, 1, 5, 6, 7, 12, 40])
def test_blocks_drop_only_the_remainder(length):
    tokens = list(range(length))
    rows = Dataset.from_dict({"input_ids": [tokens[:3], [], tokens[3:4], tokens[4:30], tokens[30:]]})
    blocks = TrainingBlocks(stream_of(tokens, 5), 6)
    expected = (
        [tokens[i : i + 6] for i in range(0, length - length % 6, 6)] if length >= 6 else [tokens] * (length > 0)
    )
    assert len(blocks) == len(expected)
    assert blocks_of(blocks) == blocks_of_pass(StreamedBlocks(rows.to_iterable_dataset(), 6)) == expected
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_one_long_document_is_cut_quickly():
    """Quadratic time in the length of a document would show here."""
    rows = IterableDataset.from_generator(lambda: iter([{"input_ids": np.arange(1_000_000)}]))
    assert sum(1 for _ in StreamedBlocks(rows, 10).read_once()) == 100_000


def test_blocks_in_worker_processes(tmp_path):
    paths = [write_lines(tmp_path / f"{i}.txt", 120, seed=i) for i in range(2)]
    rows, streamed = (load_text_files({"train": paths}, streaming)["train"] for streaming in (False, True))
    tokenizer = train_word_tokenizer(texts_of(rows))
    blocks = TrainingBlocks(TokenStream.from_rows(tokenize(rows, tokenizer, "train")), 8)
    streamed = StreamedBlocks(tokenize(streamed, tokenizer, "train"), 8)
    assert blocks_of_pass(streamed) == blocks_of(blocks)
    # Spawned workers receive a pickled copy.
    assert blocks_of(pickle.loads(pickle.dumps(blocks))) == blocks_of(blocks)
    assert blocks_of_pass(pickle.loads(pickle.dumps(streamed))) == blocks_of(blocks)
    batches = [batch["input_ids"] for batch in DataLoader(blocks, 4, num_workers=2)]
    assert torch.cat(batches).tolist() == blocks_of(blocks)


def test_streamed_blocks_in_a_worker_process(tmp_path):
    """Held-out rows are not among them."""
    paths = [write_lines(tmp_path / f"{i}.txt", 600, seed=i) for i in range(2)]
    rows = hold_out(load_text_files({"train": paths}, streaming=True), 5.0)["train"]
    streamed = StreamedBlocks(tokenize(rows, train_word_tokenizer(texts_of(rows)), "train"), 8)
    expected = blocks_of_pass(streamed)
    loader = DataLoader(streamed, batch_size=None, num_workers=1)
    assert blocks_of(itertools.islice(loader, len(expected))) == expected


def test_streamed_blocks_never_end():
    rows = Dataset.from_dict({"input_ids": [list(range(8))]}).to_iterable_dataset()
    assert blocks_of(itertools.islice(StreamedBlocks(rows, 3), 5)) == ([[0, 1, 2], [3, 4, 5]] * 3)[:5]
    assert blocks_of(itertools.islice(StreamedBlocks(rows, 9), 2)) == [[*range(8)]] * 2
    assert blocks_of(StreamedBlocks(rows.take(0), 3)) == []


def test_streamed_passes_are_shuffled_anew(tmp_path):
    rows = load(write_lines(tmp_path / "text.txt", 200), streaming=True)
    tokenizer = train_word_tokenizer(texts_of(rows))
    blocks = StreamedBlocks(tokenize(rows.shuffle(seed=0, buffer_size=50), tokenizer, "train"), 8)
    first, second = (blocks_of_pass(blocks, number) for number in (0, 1))
    assert first != second
    # The same in every iteration.
    for _ in range(2):
        assert blocks_of(itertools.islice(blocks, len(first + second))) == first + second
