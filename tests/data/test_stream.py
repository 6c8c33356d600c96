"""Tokenizers, streams of tokens and training blocks, against slow loops."""

import io
import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from ngram_wdr_hf.data.text import hold_out, load_text_files
from ngram_wdr_hf.data.token_stream import StreamedBlocks, TokenStream, TrainingBlocks, tokenize
from ngram_wdr_hf.data.tokenizers import texts_of, train_bpe_tokenizer, train_word_tokenizer
from tests.support.texts import TEXT, load, stream_of, write, write_lines


def slow_tokens(text: str) -> list[str]:
    """Return the tokens as PTB and WikiText are scored."""
    return [word for line in io.StringIO(text, newline=None) for word in [*line.split(), "<eos>"]]


def stream(rows, tokenizer, **options) -> TokenStream:
    return TokenStream.from_rows(tokenize(rows, tokenizer, **options))


def tokens_of(rows, tokenizer) -> list[str]:
    return tokenizer.convert_ids_to_tokens(stream(rows, tokenizer)[:])


def blocks_of(blocks) -> list[list[int]]:
    blocks = list(blocks)
    assert all(torch.equal(block["input_ids"], block["labels"]) for block in blocks)
    return [block["input_ids"].tolist() for block in blocks]


SPACES = "".join(f"a{chr(i)}b{chr(i)}{chr(i)}a\n" for i in range(0x3001) if chr(i).isspace() and chr(i) not in "\r\n")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "content",
    [TEXT, TEXT[:-1], TEXT.replace("\n", "\r\n"), TEXT.replace("\n", "\r"), "\ufeff" + TEXT, "\n\n\n", "a", SPACES],
)
def test_words_are_counted_as_benchmarks_count_them(tmp_path, content, streaming):
    rows = load(write(tmp_path / "text.txt", content), streaming)
    tokenizer = train_word_tokenizer(texts_of(rows))
    tokens = stream(rows, tokenizer)
    expected = slow_tokens(content.removeprefix("\ufeff"))
    assert tokenizer.convert_ids_to_tokens(tokens[:]) == expected
    assert len(tokens) == tokens.num_words == len(expected)
    assert set(tokenizer.get_vocab()) == {"<unk>", "<eos>", *expected}


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
    assert stream(rows, tokenizer).num_words == num_words


def test_bpe_documents_are_ended_and_lines_are_not():
    tokenizer = train_bpe_tokenizer([TEXT], 300)
    rows = Dataset.from_dict({"text": ["the cat\n", "the dog\n", "saw\nit", "the cat"]})
    assert tokenizer.decode(stream(rows, tokenizer)[:]) == "the cat\nthe dog\nsaw\nit<eos>the cat<eos>"
    assert stream(rows, tokenizer).num_words == 13
    tokenizer.eos_token = None
    assert tokenizer.decode(stream(rows, tokenizer)[:]).endswith("itthe cat")


def test_processes_and_streaming_give_the_same_tokens(tmp_path):
    path = write_lines(tmp_path / "text.txt", 2500)
    rows = load(path)
    tokenizer = train_word_tokenizer(texts_of(rows))
    parallel = tokenize(rows, tokenizer, num_workers=2)
    assert len(parallel.cache_files) == 2
    assert tokenize(rows, tokenizer).cache_files == parallel.cache_files
    expected = tokenizer.convert_tokens_to_ids(slow_tokens(Path(path).read_text()))
    for tokens in (TokenStream.from_rows(parallel), stream(load(path, streaming=True), tokenizer)):
        assert tokens.ids.dtype == np.int32 and tokens[:].dtype == torch.long
        assert tokens[:].tolist() == expected and tokens[997:-3].tolist() == expected[997:-3]
        assert tokens.num_words == len(tokens) == len(expected)


def test_the_next_run_does_not_tokenize_again(tmp_path):
    """With a tokenizer that was saved and loaded; with another one, it does."""
    rows = load(write_lines(tmp_path / "text.txt", 300))
    tokenizer = train_word_tokenizer(texts_of(rows))
    tokenizer.save_pretrained(tmp_path)
    first = tokenize(rows, tokenizer).cache_files
    again = load(str(tmp_path / "text.txt")), AutoTokenizer.from_pretrained(tmp_path)
    assert first == tokenize(*again).cache_files
    other = tokenize(rows, train_word_tokenizer(texts_of(rows), 5)).cache_files
    assert {file["filename"] for file in first}.isdisjoint(file["filename"] for file in other)


@pytest.mark.parametrize("length", [0, 1, 5, 6, 7, 12, 40])
def test_blocks_drop_only_the_remainder(length):
    tokens = list(range(length))
    rows = Dataset.from_dict({"input_ids": [tokens[:3], [], tokens[3:4], tokens[4:30], tokens[30:]]})
    blocks = TrainingBlocks(stream_of(tokens), 6)
    expected = (
        [tokens[i : i + 6] for i in range(0, length - length % 6, 6)] if length >= 6 else [tokens] * (length > 0)
    )
    assert len(blocks) == len(expected)
    # A streamed text begins again after its end.
    streamed = StreamedBlocks(rows.to_iterable_dataset(), 6)
    assert blocks_of(blocks) == expected
    assert blocks_of(itertools.islice(streamed, 2 * len(expected) + 1)) == expected * 2 + expected[:1]
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_blocks_in_worker_processes(tmp_path):
    paths = [write_lines(tmp_path / f"{i}.txt", 600, seed=i) for i in range(2)]
    rows, streamed = (load_text_files({"train": paths}, streaming)["train"] for streaming in (False, True))
    tokenizer = train_word_tokenizer(texts_of(rows))
    blocks = TrainingBlocks(stream(rows, tokenizer), 8)
    expected, streamed = blocks_of(blocks), StreamedBlocks(tokenize(streamed, tokenizer), 8)
    batches = [batch["input_ids"] for batch in DataLoader(blocks, 4, num_workers=2)]
    assert torch.cat(batches).tolist() == expected
    # Spawned workers receive a pickled copy.
    assert blocks_of(pickle.loads(pickle.dumps(blocks))) == expected
    for loader in (pickle.loads(pickle.dumps(streamed)), DataLoader(streamed, batch_size=None, num_workers=1)):
        assert blocks_of(itertools.islice(loader, len(expected))) == expected
    # The same for the rows that are not held out.
    rows = hold_out(load_text_files({"train": paths}, streaming=True), 5.0)["train"]
    streamed = StreamedBlocks(tokenize(rows, tokenizer), 8)
    loader = DataLoader(streamed, batch_size=None, num_workers=1)
    assert blocks_of(itertools.islice(loader, 60)) == blocks_of(itertools.islice(streamed, 60))


def test_streamed_passes_are_shuffled_anew(tmp_path):
    rows = load(write_lines(tmp_path / "text.txt", 200), streaming=True)
    tokenizer = train_word_tokenizer(texts_of(rows))
    count = len(stream(rows, tokenizer)) // 8
    blocks = StreamedBlocks(tokenize(rows.shuffle(seed=0, buffer_size=50), tokenizer), 8)
    passes = blocks_of(itertools.islice(blocks, 2 * count))
    assert passes[:count] != passes[count:]
    # The same in every iteration.
    assert blocks_of(itertools.islice(blocks, 2 * count)) == passes
