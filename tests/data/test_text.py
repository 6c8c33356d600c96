"""Text from files, folders and the Python installation, and what is held out."""

import pytest
from datasets import Dataset

from ngram_wdr_hf.data import python_english
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.text import hold_out, load_text_dataset
from ngram_wdr_hf.data.tokenizers import texts_of
from tests.support.errors import raises_naming
from tests.support.texts import load, write


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_folder(tmp_path, kind):
    rows = ["one\ntwo", "three", ""]
    for split in ("train", "validation", "test"):
        table = Dataset.from_dict({"number": [1, 2, 3], "body": rows})
        if kind == "txt":
            write(tmp_path / f"{split}.txt", "one\n\ntwo")
        else:
            getattr(table, {"jsonl": "to_json"}.get(kind, "to_parquet"))(tmp_path / f"{split}.{kind}")
    expected, column = (["one\n", "\n", "two"], "text") if kind == "txt" else (rows, "body")
    # Streaming first, before the data is cached.
    for streaming in (True, False):
        splits = load_text_dataset(str(tmp_path), column=column, streaming=streaming)
        assert list(splits) == ["train", "validation", "test"]
        for texts in splits.values():
            assert list(texts_of(texts)) == expected and next(iter(texts)).keys() == {"text"}


def test_column_that_is_missing(tmp_path):
    write(tmp_path / "train.jsonl", '{"a": "b", "c": 1, "d": "e"}')
    with raises_naming(InputError, str(tmp_path), "`text`", "train", "a, d"):
        load_text_dataset(str(tmp_path))


def test_paths_are_not_patterns(tmp_path):
    write(tmp_path / "text1.txt", "other\n")
    path = write(tmp_path / "text[1]*.txt", "this\n")
    assert [list(texts_of(load(path, streaming))) for streaming in (False, True)] == [["this\n"]] * 2


def test_held_out_rows():
    rows = Dataset.from_dict({"text": [str(i) for i in range(50)]})
    splits = hold_out({"train": rows, "test": rows}, 10.0)
    assert splits["train"]["text"][:] == [str(i) for i in range(45)]
    assert splits["validation"]["text"][:] == [str(i) for i in range(45, 50)]
    assert splits["test"] is rows
    assert len(hold_out({"train": rows}, 0.1)["validation"]) == 1
    for splits in ({"train": rows, "validation": rows}, {"test": rows}):
        assert hold_out(splits, 50.0) is splits
    # Of a stream the first.
    stream = hold_out({"train": Dataset.from_dict({"text": [*range(1003)]}).to_iterable_dataset(), "test": rows}, 5.0)
    assert [row["text"] for row in stream["train"]] == [1000, 1001, 1002] and stream["test"] is rows
    assert [row["text"] for row in stream["validation"]] == [*range(1000)]


def test_texts_that_cannot_be_split():
    rows = Dataset.from_dict({"text": ["one line"]})
    for split, names in ((rows, ["1 training rows"]), (rows.to_iterable_dataset(), ["streamed", "1,000"])):
        with raises_naming(InputError, "validation", *names):
            hold_out({"train": split}, 5.0)
    with raises_naming(InputError, "100"):
        hold_out({"train": Dataset.from_dict({"text": ["a", "b"]})}, 100)


def test_python_english_has_every_docstring_once_in_order(tmp_path, monkeypatch):
    b, f, a, g, other = (f"These are five words of {name}." for name in ("b", "f", "a", "g", "a test"))
    code = '"""{}"""\n\n\nclass A:\n    def f():\n        """{}"""\n'
    files = {"b/__init__": (b, f), "a": (a, "Too short."), "z": (a, g), "test/a": (other, other)}
    for name, texts in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / f"{name}.py", code.format(*texts))
    monkeypatch.setattr(python_english.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    topics = {"y": "This topic has five words.", "x": " This one has five, too.\n"}
    monkeypatch.setattr(python_english, "topics", topics)
    expected = ["This one has five, too.", "This topic has five words.", a, b, f, g]
    assert [row["text"] for row in python_english._rows()] == expected
