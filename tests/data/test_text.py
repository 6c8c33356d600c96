"""Text from files, folders and the Python installation, and invalid input."""

import json
from pathlib import Path

import pytest
from datasets import Dataset, IterableDataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from ngram_wdr_hf.data import english
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.text import hold_out, load_text_dataset
from ngram_wdr_hf.data.token_stream import EvaluationWindows, StreamedBlocks, TokenStream, TrainingBlocks, tokenize
from ngram_wdr_hf.data.tokenizers import texts_of, train_word_tokenizer
from tests.support.errors import raises_naming
from tests.support.texts import START, TEXT, load, write


def write_folder(folder: Path, kind: str) -> dict[str, list[str]]:
    """Write one file per split; return the expected rows."""
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
    # Streaming first, before the data is cached.
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
    with raises_naming(InputError, str(tmp_path), "first", "second"):
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


def test_python_english_has_every_docstring_once_in_order(tmp_path, monkeypatch):
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
    with raises_naming(InputError, "missing.txt"):
        load(str(tmp_path / "missing.txt"), streaming)
    with raises_naming(InputError, str(tmp_path), "folder"):
        load(str(tmp_path), streaming)
    with raises_naming(InputError, "empty.txt"):
        load(write(tmp_path / "empty.txt", ""), streaming)


def test_text_that_is_not_utf8(tmp_path):
    path = write(tmp_path / "latin1.txt", b"good\n" * 10 + "café\n".encode("latin-1"))
    with raises_naming(InputError, "latin1.txt", "UTF-8"):
        load(path)
    tokenizer, rows = train_word_tokenizer([TEXT]), load(path, streaming=True)
    rows_of_tokens = tokenize(rows, tokenizer, "train")
    for read in (
        lambda: list(texts_of(rows)),
        lambda: list(StreamedBlocks(rows_of_tokens, 4).read_once()),
        lambda: TokenStream.from_rows(rows_of_tokens),
    ):
        with raises_naming(InputError, "UTF-8"):
            read()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("files", "options", "names"),
    [
        ({}, {}, ["data files"]),
        ({"train.txt": ""}, {}, ["no rows"]),
        ({"train.txt": b"caf\xe9"}, {}, ["codec"]),
        ({"train.jsonl": '{"text": "a"}\n{"text":'}, {}, ["JSON"]),
        ({"train.jsonl": '{"a": "b", "c": 1, "d": "e"}'}, {}, ["--text_column", "`text`", "train", "a, d"]),
        ({"train.jsonl": '{"text": 1}'}, {}, ["--text_column", "`text`", "train", "none"]),
        ({"test.txt": "a"}, {"column": "body"}, ["--text_column", "`body`", "test", "text."]),
        ({"train.txt": "a"}, {"config": "other"}, ["'other'"]),
        ({"README.md": "---\nconfigs:\n- config_name: x\n  data_files:\n  - split: mine\n    path: a.txt\n---\n",
          "a.txt": "a"}, {}, ["train, validation, test", "mine"]),
    ],
)  # fmt: skip
def test_bad_folders(tmp_path, files, options, names, streaming):
    for name, content in files.items():
        write(tmp_path / name, content)
    with raises_naming(InputError, str(tmp_path), *names):
        load_text_dataset(str(tmp_path), streaming=streaming, **options)


@pytest.mark.parametrize("name", ["nobody/nothing", "./missing"])
def test_unknown_dataset(name):
    with raises_naming(InputError, name):
        load_text_dataset(name)


def test_the_first_rows_of_a_stream_are_held_out():
    rows = Dataset.from_dict({"text": [str(i) for i in range(1003)]})
    parts = hold_out({"train": rows.to_iterable_dataset(), "test": rows}, 5.0)
    assert [row["text"] for row in parts["train"]] == ["1000", "1001", "1002"]
    assert [row["text"] for row in parts["validation"]] == [str(i) for i in range(1000)]
    assert parts["test"] is rows


def test_texts_that_cannot_be_split():
    rows = Dataset.from_dict({"text": ["one line"]})
    with raises_naming(InputError, "--validation_file", "1 lines"):
        hold_out({"train": rows}, 5.0)
    with raises_naming(InputError, "--validation_file", "--streaming", "1,000"):
        hold_out({"train": rows.to_iterable_dataset()}, 5.0)
    for percentage in (0, 100, -1, float("nan")):
        with raises_naming(InputError, "--validation_percentage", str(percentage)):
            hold_out({"train": rows}, percentage)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_tokenizer_of_another_language(num_workers):
    no_unknown = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=no_unknown)
    rows = Dataset.from_dict({"text": ["a"] * 2000 + ["b"]})
    with raises_naming(InputError, "tokenizer", "train"):
        tokenize(rows, tokenizer, "train", num_workers)
    with raises_naming(InputError, "tokenizer", "train"):
        list(StreamedBlocks(tokenize(rows.to_iterable_dataset(), tokenizer, "train"), 4).read_once())


def test_text_without_tokens():
    tokenizer = train_word_tokenizer([])
    for rows in (Dataset.from_dict({"text": []}), IterableDataset.from_generator(lambda: iter(()))):
        tokens = TokenStream.from_rows(tokenize(rows, tokenizer, "train"))
        assert len(tokens) == tokens.num_words == 0
        assert len(TrainingBlocks(tokens, 4)) == len(EvaluationWindows(tokens, 4, 2, START)) == 0
        assert tokens[:].tolist() == []
