"""Text from files, folders and the Python installation, and what is held out."""

import json
from pathlib import Path

import pytest
from datasets import Dataset

from ngram_wdr_hf.data import python_english
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.text import hold_out, load_text_dataset
from ngram_wdr_hf.data.tokenizers import load_tokenizer, texts_of
from tests.support.errors import raises_naming
from tests.support.texts import load, write
from tests.support.tiny import plain_model


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
    ("kind", "column"), [("txt", "text"), ("jsonl", "text"), ("jsonl", "body"), ("parquet", "body")]
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


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("files", "column", "names"),
    [
        ({"train.jsonl": '{"a": "b", "c": 1, "d": "e"}'}, "text", ["`text`", "train", "a, d"]),
        ({"train.jsonl": '{"text": 1}'}, "text", ["`text`", "train", "none"]),
        ({"test.txt": "a"}, "body", ["`body`", "test", "text."]),
        ({"README.md": "---\nconfigs:\n- config_name: x\n  data_files:\n  - split: mine\n    path: a.txt\n---\n",
          "a.txt": "a"}, "text", ["train, validation, test", "mine"]),
    ],
)  # fmt: skip
def test_bad_folders(tmp_path, files, column, names, streaming):
    for name, content in files.items():
        write(tmp_path / name, content)
    with raises_naming(InputError, str(tmp_path), *names):
        load_text_dataset(str(tmp_path), column=column, streaming=streaming)


def test_paths_are_not_patterns(tmp_path):
    write(tmp_path / "text1.txt", "other\n")
    for name in ("text[1].txt", "text*.txt", "text?.txt"):
        for streaming in (False, True):
            assert list(texts_of(load(write(tmp_path / name, f"{name}\n"), streaming))) == [f"{name}\n"]


def test_the_last_rows_are_held_out():
    rows = Dataset.from_dict({"text": [str(i) for i in range(50)]})
    splits = hold_out({"train": rows, "test": rows}, 10.0)
    assert splits["train"]["text"][:] == [str(i) for i in range(45)]
    assert splits["validation"]["text"][:] == [str(i) for i in range(45, 50)]
    assert splits["test"] is rows
    assert len(hold_out({"train": rows}, 0.1)["validation"]) == 1
    for splits in ({"train": rows, "validation": rows}, {"test": rows}):
        assert hold_out(splits, 50.0) is splits


def test_the_first_rows_of_a_stream_are_held_out():
    rows = Dataset.from_dict({"text": [str(i) for i in range(1003)]})
    parts = hold_out({"train": rows.to_iterable_dataset(), "test": rows}, 5.0)
    assert [row["text"] for row in parts["train"]] == ["1000", "1001", "1002"]
    assert [row["text"] for row in parts["validation"]] == [str(i) for i in range(1000)]
    assert parts["test"] is rows


def test_texts_that_cannot_be_split():
    rows = Dataset.from_dict({"text": ["one line"]})
    with raises_naming(InputError, "validation", "1 training rows"):
        hold_out({"train": rows}, 5.0)
    with raises_naming(InputError, "validation", "streamed", "1,000"):
        hold_out({"train": rows.to_iterable_dataset()}, 5.0)
    for percentage in (0, 100, -1, float("nan"), float("inf")):
        with raises_naming(InputError, str(percentage)):
            hold_out({"train": Dataset.from_dict({"text": ["a", "b"]})}, percentage)


def test_python_english():
    splits, again = python_english.python_english(), python_english.python_english()
    texts = {split: list(texts_of(rows)) for split, rows in splits.items()}
    assert list(texts) == ["train", "validation", "test"] and all(texts.values())
    together = [text for split in texts.values() for text in split]
    assert len(set(together)) == len(together)
    assert 250_000 < sum(len(text.split()) for text in together) < 400_000
    assert len(texts["train"]) > 0.75 * len(together)
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
    monkeypatch.setattr(python_english.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    topics = {"y": "This topic has five words.", "x": " This one has five, too.\n"}
    monkeypatch.setattr(python_english, "topics", topics)
    expected = ["This one has five, too.", "This topic has five words.", long[2], long[0], long[1], long[3]]
    assert [row["text"] for row in python_english._rows()] == expected


def test_folder_without_a_tokenizer(tmp_path):
    plain_model().save_pretrained(tmp_path)
    with raises_naming(InputError, str(tmp_path), "tokenizer"):
        load_tokenizer(str(tmp_path))
