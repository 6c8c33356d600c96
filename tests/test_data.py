"""From text to tokens, blocks and windows: every count and every perplexity against a slow loop."""

import json
import pickle
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset, IterableDataset
from tokenizers import Tokenizer, models
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ngram_wdr_hf.data import english, stream
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.stream import (
    IGNORE_INDEX,
    EvaluationWindows,
    StreamedBlocks,
    TokenStream,
    TrainingBlocks,
    evaluation_windows,
    tokenize,
)
from ngram_wdr_hf.data.text import hold_out, load_text_dataset, load_text_files
from ngram_wdr_hf.data.tokenizer import start_token_id, texts_of, train_bpe_tokenizer, train_word_tokenizer
from ngram_wdr_hf.training.evaluation import score

from .reference import ensembled_logits, head_prediction
from .tiny import random_ids, tiny_model

TEXT = "the cat saw the <unk> dog\n\n the dog\tsaw it \n \nit saw the <unk>\n"
START = 1


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def write_lines(path: Path, count: int, seed: int = 0) -> str:
    """Lines of a few words, some of them empty."""
    chance = random.Random(seed)
    lines = (" ".join(chance.choices("abcdefghijkl", k=chance.randrange(8))) for _ in range(count))
    return write(path, "".join(f"{line}\n" for line in lines))


def load(path: str, streaming: bool = False) -> Dataset | IterableDataset:
    return load_text_files({"train": [path]}, streaming)["train"]


def slow_tokens(text: str) -> list[str]:
    """As PTB and WikiText are scored."""
    return [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]


def stream_of(tokens, pieces: int = 1) -> TokenStream:
    return TokenStream(np.array_split(np.asarray(tokens, dtype=np.int32), pieces), len(tokens))


def tokens_of(rows, tokenizer, **options) -> list[str]:
    return tokenizer.convert_ids_to_tokens(TokenStream.from_rows(tokenize(rows, tokenizer, "train", **options))[:])


def blocks_of(blocks) -> list[list[int]]:
    assert all(torch.equal(block["input_ids"], block["labels"]) for block in blocks)
    return [block["input_ids"].tolist() for block in blocks]


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


def test_words_that_were_not_trained_on(tmp_path):
    tokenizer = train_word_tokenizer([TEXT])
    rows = load(write(tmp_path / "text.txt", "the bird\nsaw <unk> Dog\n"))
    assert tokens_of(rows, tokenizer) == ["the", "<unk>", "<eos>", "saw", "<unk>", "<unk>", "<eos>"]
    assert tokenizer.unk_token_id == 0 and tokenizer.eos_token_id == start_token_id(tokenizer) == 1


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
    assert loaded.eos_token_id == tokenizer.eos_token_id and loaded.unk_token_id == tokenizer.unk_token_id
    for text in (TEXT, *ODD_TEXTS):
        ids = loaded(text, add_special_tokens=False)["input_ids"]
        assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert loaded.decode(ids) == tokenizer.decode(ids)
    # By this, tokenized text is found again.
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize(
    ("rows", "expected", "num_words"),
    [
        (["a b", "c"], "a b <eos> c <eos>", 5),
        (["a b\n", "c\n"], "a b <eos> c <eos>", 5),
        (["a\nb", "c\n"], "a <eos> b <eos> c <eos>", 6),
        (["a", "", "b\n", "\n"], "a <eos> <eos> b <eos> <eos>", 6),
        # As files of comma-separated values give an empty text.
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
    for places in ([1, 2], [3, 0, 0], []):
        expected = TokenStream.from_rows(tokenize(rows.select(places), tokenizer, "train"))
        selected = TokenStream.from_rows(tokens.select(places))
        assert torch.equal(selected[:], expected[:]) and selected.num_words == expected.num_words


def test_tokens_stay_in_their_files(tmp_path):
    """Neither reading a stream nor sending it to another process copies the tokens."""
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
        """All of it anew, as another process would do; how often something was tokenized, and the tokens."""
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
    # Another tokenizer or another text is another matter.
    calls_of_small, small = run(path, vocab_size=5)
    assert calls_of_small > 0 and small != tokens
    write_lines(tmp_path / "text.txt", 299, seed=1)
    calls_of_changed, changed = run(path)
    assert calls_of_changed > 0 and changed != tokens


def test_tokenizers_without_a_definition_are_told_apart():
    """Two slow tokenizers with one vocabulary can still differ."""

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
    assert blocks_of(blocks) == blocks_of(StreamedBlocks(rows.to_iterable_dataset(), 6)) == expected
    with pytest.raises(IndexError):
        blocks[len(blocks)]


def test_one_long_document_is_cut_quickly():
    """Time that grows with the square of a document's length would show here."""
    rows = IterableDataset.from_generator(lambda: iter([{"input_ids": np.arange(1_000_000)}]))
    assert sum(1 for _ in StreamedBlocks(rows, 10)) == 100_000


def test_blocks_in_worker_processes(tmp_path):
    paths = [write_lines(tmp_path / f"{i}.txt", 120, seed=i) for i in range(2)]
    rows, streamed = (load_text_files({"train": paths}, streaming)["train"] for streaming in (False, True))
    tokenizer = train_word_tokenizer(texts_of(rows))
    blocks = TrainingBlocks(TokenStream.from_rows(tokenize(rows, tokenizer, "train")), 8)
    streamed = StreamedBlocks(tokenize(streamed, tokenizer, "train"), 8)
    assert blocks_of(streamed) == blocks_of(blocks)
    # Where processes are not forked, they are sent the blocks.
    for sent in (blocks, streamed):
        assert blocks_of(pickle.loads(pickle.dumps(sent))) == blocks_of(blocks)
    batches = [batch["input_ids"] for batch in DataLoader(blocks, 4, num_workers=2)]
    assert torch.cat(batches).tolist() == blocks_of(blocks)
    # Each worker reads files of its own.
    batches = [batch["input_ids"] for batch in DataLoader(streamed, 4, num_workers=2)]
    one_by_one = [blocks_of(StreamedBlocks(tokenize(load(path, True), tokenizer, "train"), 8)) for path in paths]
    assert sorted(torch.cat(batches).tolist()) == sorted(one_by_one[0] + one_by_one[1])


def test_streamed_epochs_are_shuffled_anew(tmp_path):
    rows = load(write_lines(tmp_path / "text.txt", 200), streaming=True)
    tokenizer = train_word_tokenizer(texts_of(rows))
    blocks = StreamedBlocks(tokenize(rows.shuffle(seed=0, buffer_size=50), tokenizer, "train"), 8)
    epochs = []
    for epoch in (0, 1, 0):
        blocks.set_epoch(epoch)
        epochs.append(blocks_of(blocks))
    assert epochs[0] == epochs[2] != epochs[1]


@pytest.mark.parametrize("start", [None, START])
@pytest.mark.parametrize("window_size", range(1, 7))
def test_every_token_is_a_target_once(window_size, start):
    """
    Target number k is predicted from all k+1 tokens before it if k < W. Any other is predicted from the tokens of its
    window up to it, at least W - stride + 1; in all windows but the last, the first new target from exactly so many.
    """
    for length in range(20):
        tokens = list(range(100, 100 + length))
        text = [start, *tokens] if start is not None else tokens
        num_targets = max(len(text) - 1, 0)
        for stride in (None, *range(1, window_size + 2)):
            windows = EvaluationWindows(stream_of(tokens, 3), window_size, stride, start)
            assert windows.num_targets == num_targets
            size = min(window_size, num_targets)
            step = size if stride is None else min(stride, size)
            found = []
            for number, window in enumerate(windows):
                ids, targets = window["input_ids"].tolist(), window["shift_labels"].tolist()
                assert len(ids) == len(targets) == size
                begin = text.index(ids[0])
                assert ids == text[begin : begin + size]
                contexts = []
                for t, target in enumerate(targets):
                    if target != IGNORE_INDEX:
                        assert target == text[begin + t + 1]
                        contexts.append(t + 1)
                        found.append(target)
                # The targets of a window come one after the other, the last of them at its end.
                assert contexts == list(range(contexts[0], size + 1))
                if number == 0:
                    assert begin == 0 and contexts[0] == 1
                elif number < len(windows) - 1:
                    assert contexts[0] == size - step + 1
                else:
                    assert contexts[0] >= size - step + 1
            assert found == text[1:]
            assert len(windows) == len(
                [k for k in range(num_targets) if k == 0 or (k >= size and (k - size) % step == 0)]
            )
            with pytest.raises(IndexError):
                windows[len(windows)]


def test_windows_begin_as_the_tokenizer_does():
    tokenizer = train_word_tokenizer([TEXT])
    assert evaluation_windows(stream_of([5, 6, 7]), tokenizer, 8, None)[0]["input_ids"].tolist() == [1, 5, 6]
    tokenizer.bos_token = "dog"
    bos = tokenizer.bos_token_id
    assert evaluation_windows(stream_of([5, 6, 7]), tokenizer, 8, 2)[0]["input_ids"].tolist() == [bos, 5, 6]
    tokenizer.bos_token = tokenizer.eos_token = None
    assert evaluation_windows(stream_of([5, 6, 7]), tokenizer, 8, 2)[0]["input_ids"].tolist() == [5, 6]


LAMBDAS = [0.0, 0.3, 1.0]


@torch.no_grad()
def slow_scores(model, text: list[int], window_size: int, stride: int):
    """The NLL of the text for each λ, and the mean NLL of the next word and each head; one target at a time."""
    num_targets = len(text) - 1
    nlls = {value: [] for value in LAMBDAS}
    head_nlls = [[] for _ in range(model.config.ngram_size)]
    for k in range(num_targets):
        window = 0 if k < window_size else (k - window_size) // stride + 1
        begin = max(0, min(window * stride, num_targets - window_size))
        context, target = torch.tensor([text[begin : k + 1]]), torch.tensor(text[k + 1])
        for value in LAMBDAS:
            nlls[value].append(F.cross_entropy(ensembled_logits(model, context, value)[0, -1], target))
        hidden = model.transformer(context).last_hidden_state
        for n in range(min(model.config.ngram_size, context.shape[1])):
            t = context.shape[1] - 1 - n
            said = head_prediction(model, hidden, context, 0, t, n) if n else hidden[0, t]
            head_nlls[n].append(F.cross_entropy(model.lm_head(said), target))
    means = [sum(head) / max(len(head), 1) for head in head_nlls]
    return torch.tensor([sum(values) for values in nlls.values()]), torch.tensor(means, dtype=torch.double)


@pytest.mark.parametrize("target", ["wdr", "simple"])
@pytest.mark.parametrize(
    ("window_size", "stride", "start"), [(6, 1, START), (6, 4, None), (6, 6, START), (2, 1, START)]
)
def test_perplexity_by_windows_equals_a_loop_over_targets(target, window_size, stride, start):
    model = tiny_model(torch.float64, ngram_target=target)
    tokens = random_ids(1, 17)[0].tolist()
    windows = EvaluationWindows(stream_of(tokens, 2), window_size, stride, start)
    scores = score(model, windows, LAMBDAS, batch_size=3)
    text = [start, *tokens] if start is not None else tokens
    sums, head_nlls = slow_scores(model, text, window_size, stride)
    torch.testing.assert_close(torch.tensor(scores.nll_sums, dtype=torch.double), sums.double())
    torch.testing.assert_close(torch.tensor(scores.head_nlls, dtype=torch.double), head_nlls)
    assert scores.num_tokens == len(text) - 1 and scores.num_words == len(tokens)
    torch.testing.assert_close(torch.tensor(scores.perplexities("word")).double(), (sums.double() / len(tokens)).exp())


@pytest.mark.parametrize("length", [1, 2, 9])
def test_short_text_is_seen_whole(length):
    model, tokens = tiny_model(torch.float64), random_ids(1, length)
    scores = score(model, EvaluationWindows(stream_of(tokens[0]), 50, 7, START), LAMBDAS, batch_size=4)
    text = torch.cat([torch.tensor([[START]]), tokens], 1)
    for value, nll in zip(LAMBDAS, scores.nll_sums, strict=True):
        logits = ensembled_logits(model, text[:, :-1], value)[0]
        assert nll == pytest.approx(F.cross_entropy(logits, tokens[0], reduction="sum").item())
    assert scores.num_tokens == length


@pytest.mark.parametrize("num_processes", [2, 3, 5])
def test_shares_of_processes_add_up(num_processes):
    model = tiny_model(torch.float64)
    windows = EvaluationWindows(stream_of(random_ids(1, 21)[0]), 8, 5, START)
    assert len(windows) == 4
    one = score(model, windows, LAMBDAS, batch_size=2)

    shares, batches = [], []
    for index in range(num_processes):
        sums = []
        batches.append(0)

        def count(index=index):
            batches[index] += 1

        score(
            model,
            windows,
            LAMBDAS,
            2,
            index,
            num_processes,
            lambda value, sums=sums: sums.append(value) or value,
            count,
        )
        shares.append(sums)
    # All processes meet equally often.
    assert len(set(batches)) == 1
    totals = iter([sum(values) for values in zip(*shares, strict=True)])
    together = score(model, windows, LAMBDAS, 2, 0, num_processes, lambda value: next(totals))
    assert together.num_tokens == one.num_tokens == 21
    assert together.nll_sums == pytest.approx(one.nll_sums)
    assert together.head_nlls == pytest.approx(one.head_nlls)


def write_folder(folder: Path, kind: str) -> dict[str, list[str]]:
    """A split of a few rows in each file; what is expected of them."""
    folder.mkdir()
    texts = {split: [f"{split} one\ntwo", f"{split} three", ""] for split in ("train", "validation", "test")}
    for split, rows in texts.items():
        table = Dataset.from_dict({"number": [1, 2, 3], "text": rows, "body": rows})
        if kind == "txt":
            write(folder / f"{split}.txt", f"{split} one\n\ntwo")
        elif kind == "jsonl":
            table.to_json(folder / f"{split}.jsonl")
        else:
            table.to_parquet(folder / f"{split}.parquet")
    return {split: [f"{split} one\n", "\n", "two"] for split in texts} if kind == "txt" else texts


@pytest.mark.parametrize(
    ("kind", "column"),
    [("txt", "text"), ("jsonl", "text"), ("jsonl", "body"), ("parquet", "text"), ("parquet", "body")],
)
def test_folder(tmp_path, kind, column):
    expected = write_folder(tmp_path / "data", kind)
    # Streaming comes first, when nothing is known of the data.
    for streaming in (True, False):
        splits = load_text_dataset(str(tmp_path / "data"), column=column, streaming=streaming)
        assert {split: list(texts_of(rows)) for split, rows in splits.items()} == expected
        assert all(row.keys() == {"text"} for row in splits["train"])


def test_configurations(tmp_path):
    settings = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("first", "second"))
    write(tmp_path / "README.md", f"---\nconfigs:\n{settings}---\n")
    for name in ("first", "second"):
        write(tmp_path / f"{name}.jsonl", json.dumps({"text": name}))
    assert list(texts_of(load_text_dataset(str(tmp_path), "second")["train"])) == ["second"]
    with pytest.raises(InputError, match=r"pick one among the available configs: \['first', 'second'"):
        load_text_dataset(str(tmp_path))


def test_paths_are_not_patterns(tmp_path):
    write(tmp_path / "text1.txt", "other\n")
    for name in ("text[1].txt", "text*.txt", "text?.txt"):
        for streaming in (False, True):
            assert list(texts_of(load(write(tmp_path / name, f"{name}\n"), streaming))) == [f"{name}\n"]


def test_held_out_rows_are_the_last():
    rows = Dataset.from_dict({"text": [str(i) for i in range(50)]})
    splits = hold_out({"train": rows, "test": rows}, 10.0)
    assert splits["train"]["text"][:] == [str(i) for i in range(45)]
    assert splits["validation"]["text"][:] == [str(i) for i in range(45, 50)]
    assert splits["test"] is rows
    assert hold_out({"train": rows, "validation": rows}, 10.0)["train"] is rows
    assert len(hold_out({"train": rows}, 0.1)["validation"]) == 1


def test_python_english():
    splits = english.python_english()
    texts = {split: list(texts_of(rows)) for split, rows in splits.items()}
    assert list(texts) == ["train", "validation", "test"] and all(texts.values())
    together = [text for split in texts.values() for text in split]
    assert len(set(together)) == len(together)
    assert 250_000 < sum(len(text.split()) for text in together) < 400_000
    assert len(texts["train"]) > 0.75 * len(together)
    again = english.python_english()
    assert [rows._fingerprint for rows in again.values()] == [rows._fingerprint for rows in splits.values()]


def test_python_english_is_every_docstring_once_and_in_order(tmp_path, monkeypatch):
    def code(module, function):
        return f'"""{module}"""\n\n\nclass A:\n    def f():\n        """{function}"""\n'

    for folder in ("b", "test"):
        (tmp_path / folder).mkdir()
    long = [f"These are five words of {name}." for name in ("b", "b.f", "a", "a.f", "a test")]
    write(tmp_path / "b" / "__init__.py", code(long[0], long[1]))
    write(tmp_path / "a.py", code(long[2], "Too short."))
    write(tmp_path / "z.py", code(long[2], long[3]))
    write(tmp_path / "test" / "a.py", code(long[4], long[4]))
    monkeypatch.setattr(english.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(english, "topics", {"y": "This topic has five words.", "x": " This one has five, too.\n"})
    expected = ["This one has five, too.", "This topic has five words.", long[2], long[0], long[1], long[3]]
    assert list(english._documents()) == expected


@pytest.mark.parametrize("streaming", [False, True])
def test_bad_files(tmp_path, streaming):
    with pytest.raises(InputError, match=r"There is no file .*missing\.txt: check the path"):
        load(str(tmp_path / "missing.txt"), streaming)
    with pytest.raises(InputError, match="There is no file"):
        load(str(tmp_path), streaming)
    with pytest.raises(InputError, match=r"The file .*empty.txt is empty"):
        load(write(tmp_path / "empty.txt", ""), streaming)


def test_text_that_is_not_utf8(tmp_path):
    path = write(tmp_path / "latin1.txt", b"good\n" * 10 + "café\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin1\.txt is not UTF-8 text: convert it"):
        load(path)
    tokenizer, rows = train_word_tokenizer([TEXT]), load(path, streaming=True)
    rows_of_tokens = tokenize(rows, tokenizer, "train")
    for read in (
        lambda: list(texts_of(rows)),
        lambda: list(StreamedBlocks(rows_of_tokens, 4)),
        lambda: TokenStream.from_rows(rows_of_tokens),
    ):
        with pytest.raises(InputError, match=r"The streamed text is not UTF-8 .*: convert it"):
            read()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, {}, "cannot be loaded .*doesn't contain any data files"),
        ({"train.txt": ""}, {}, "cannot be loaded|has no rows in its train split"),
        ({"train.txt": b"caf\xe9"}, {}, "cannot be loaded .*codec can't decode"),
        ({"train.jsonl": '{"text": "a"}\n{"text":'}, {}, "cannot be loaded .*JSON parse error"),
        ({"train.jsonl": '{"a": "b", "c": 1, "d": "e"}'}, {}, "no column `text` of text in its train split, but a, d"),
        ({"train.jsonl": '{"text": 1}'}, {}, "no column `text` of text in its train split, but none: set `--text_col"),
        ({"test.txt": "a"}, {"column": "body"}, "no column `body` of text in its test split, but text: set"),
        ({"train.txt": "a"}, {"config": "other"}, "cannot be loaded .*'other' not found"),
        ({"README.md": "---\nconfigs:\n- config_name: x\n  data_files:\n  - split: mine\n    path: a.txt\n---\n",
          "a.txt": "a"}, {}, "has none of the splits train, validation, test, but mine"),
    ],
)  # fmt: skip
def test_bad_folders(tmp_path, files, options, message, streaming):
    for name, content in files.items():
        write(tmp_path / name, content)
    with pytest.raises(InputError, match=f"^The dataset .*{message}") as info:
        load_text_dataset(str(tmp_path), streaming=streaming, **options)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("name", ["nobody/nothing", "./missing"])
def test_unknown_dataset(name):
    with pytest.raises(InputError, match=f"^The dataset {name} cannot be loaded .*: check its name and its files.$"):
        load_text_dataset(name)


def test_texts_that_cannot_be_split():
    rows = Dataset.from_dict({"text": ["one line"]})
    with pytest.raises(InputError, match="A training text of 1 lines is too short to split"):
        hold_out({"train": rows}, 5.0)
    with pytest.raises(InputError, match="Streamed text cannot be split"):
        hold_out({"train": rows.to_iterable_dataset()}, 5.0)
    for percentage in (0, 100, -1, float("nan")):
        with pytest.raises(InputError, match="`--validation_percentage` must lie between 0 and 100"):
            hold_out({"train": rows}, percentage)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_tokenizer_of_another_language(num_workers):
    no_unknown = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=no_unknown)
    rows = Dataset.from_dict({"text": ["a"] * 2000 + ["b"]})
    with pytest.raises(InputError, match="The tokenizer does not cover the words of the train text"):
        tokenize(rows, tokenizer, "train", num_workers)
    with pytest.raises(InputError, match="The tokenizer does not cover the words of the train text"):
        list(StreamedBlocks(tokenize(rows.to_iterable_dataset(), tokenizer, "train"), 4))


def test_text_without_tokens():
    tokenizer = train_word_tokenizer([])
    for rows in (Dataset.from_dict({"text": []}), IterableDataset.from_generator(lambda: iter(()))):
        tokens = TokenStream.from_rows(tokenize(rows, tokenizer, "train"))
        assert len(tokens) == tokens.num_words == 0
        assert len(TrainingBlocks(tokens, 4)) == len(EvaluationWindows(tokens, 4, 2, START)) == 0
        assert tokens[:].tolist() == []
