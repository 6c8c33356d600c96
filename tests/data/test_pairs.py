"""Sentence pairs from parallel files and folders."""

import json

import pytest
from datasets import Dataset, Features, Translation, Value

from ngram_wdr_hf.data import pairs as data
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.text import hold_out
from tests.support.errors import assert_names, raises_naming
from tests.support.texts import write

PAIRS = [("the cat", "die Katze"), ("a dog", "ein Hund"), ("übermorgen 🤗", "日本語")]
SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"]


def pairs_of(rows: Dataset) -> list[tuple[str, str | None]]:
    assert rows.column_names == ["source", "target"]
    return list(zip(rows["source"][:], rows["target"][:], strict=True))


def rows_of(*pairs: tuple[str | None, str | None]) -> Dataset:
    source, target = zip(*pairs, strict=True)
    return Dataset.from_dict({"source": source, "target": target}, data.PAIRS)


def json_lines(*rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_fields(pair: tuple[str, str]) -> dict[str, str]:
    return {"en": pair[0], "de": pair[1]}


@pytest.mark.parametrize(("line_break", "mark", "is_ended"), [("\n", "", True), ("\r\n", "\ufeff", False)])
def test_parallel_files(tmp_path, line_break, mark, is_ended):
    # Only line breaks end a line; empty lines and spaces stay.
    pairs = [*PAIRS, ("", "eins"), (" three \t", ""), *[(f"a{mark}b", "c") for mark in SEPARATORS], ("end", "Ende")]
    source, target = ("\n".join(texts) for texts in zip(*pairs, strict=True))
    for texts in ([source, target], [target, source]):
        # Only one side has these line breaks.
        texts[0] = mark + texts[0].replace("\n", line_break) + line_break * is_ended
        paths = [[write(tmp_path / str(i), text)] for i, text in enumerate(texts)]
        rows = data.load_pair_files({"train": tuple(paths)})["train"]
        assert pairs_of(rows) == (pairs if texts[1] is target else [pair[::-1] for pair in pairs])


def test_several_files_a_side(tmp_path):
    """Files are concatenated; each may begin with a byte order mark. Their names are no patterns."""
    sources = [write(tmp_path / "b*.en", "\ufeff1\n2"), write(tmp_path / "a.en", "\ufeff3\n")]
    targets = [write(tmp_path / "b[1].de", "one\n"), write(tmp_path / "a.de", "\ufefftwo\r\nthree")]
    splits = data.load_pair_files({"train": (sources, targets), "test": (sources[1:], ())})
    assert pairs_of(splits["train"]) == [("1", "one"), ("2", "two"), ("3", "three")]
    assert pairs_of(splits["test"]) == [("3", None)] and not data.has_references(splits["test"])
    assert data.has_references(rows_of(("a", None), ("b", "c")))
    with raises_naming(InputError, "a.en has 3", "de has 1"):
        data.load_pair_files({"validation": (sources, targets[:1])})


@pytest.mark.parametrize("wrap", [lambda fields: fields, lambda fields: {"id": "7", "translation": fields}])
def test_json_lines(tmp_path, wrap):
    pairs = [*PAIRS, (" one\u2028two\x85\n", "\r\ndrei "), ("2020-01-01", "17"), ("", "null"), ("d", None)]
    rows = [wrap({**as_fields(pair), "fr": "non"}) for pair in pairs]
    for split, part in (("train", rows), ("test", rows[2:])):
        write(tmp_path / f"{split}.jsonl", json_lines(*part))
    splits = data.load_pair_dataset(str(tmp_path), None, "en", "de")
    assert {split: pairs_of(rows) for split, rows in splits.items()} == {"train": pairs, "test": pairs[2:]}
    other_way = data.load_pair_dataset(str(tmp_path), None, "de", "en")["train"]
    assert pairs_of(other_way) == [pair[::-1] for pair in pairs]
    with raises_naming(InputError, "target_lang", "it"):
        data.load_pair_dataset(str(tmp_path), None, "en", "it")


# The format of WMT and OPUS on the Hub, and long texts.
@pytest.mark.parametrize(
    "kind", [Translation(["de", "en"]), {"de": Value("large_string"), "en": Value("large_string")}]
)
def test_dataset_in_a_folder(tmp_path, kind):
    rows = {"id": ["0", "1", "2"], "translation": [as_fields(pair) for pair in PAIRS]}
    for split in ("test", "train"):
        features = Features({"id": Value("string"), "translation": kind})
        Dataset.from_dict(rows, features).to_parquet(tmp_path / f"{split}.parquet")
    splits = data.load_pair_dataset(str(tmp_path), None, "en", "de")
    assert list(splits) == ["train", "test"] and all(pairs_of(rows) == PAIRS for rows in splits.values())
    assert data.texts_of_pairs(splits["test"]) == [pair[side] for side in (0, 1) for pair in PAIRS]


def test_empty_pairs_are_dropped_and_counted(monkeypatch):
    messages = []
    monkeypatch.setattr(data.logger, "warning", messages.append)
    bad = [("", "b"), ("a", ""), (" \t\u2003", "b"), ("a", "\r\n"), (None, "b"), ("a", None), ("", "")]
    mixed = [PAIRS[0], *bad[:3], PAIRS[1], *bad[3:], PAIRS[2]]
    splits = {"train": rows_of(*mixed), "validation": rows_of(*PAIRS), "test": rows_of(("a", None), ("", None))}
    kept = data.drop_empty(splits)
    assert pairs_of(kept["train"]) == pairs_of(kept["validation"]) == PAIRS
    # A set without any reference keeps its sources.
    assert pairs_of(kept["test"]) == [("a", None)] and len(messages) == 2
    assert_names(messages[0], "7 of 10", "train")
    with raises_naming(InputError, "test set"):
        data.drop_empty({"test": rows_of(("a", ""), ("", "b"))})


def test_held_out_pairs_are_random():
    pairs = [(f"source {i}", f"target {i}") for i in range(200)]
    held, again = (hold_out({"train": rows_of(*pairs)}, 5.0, shuffle=True) for _ in range(2))
    train, validation = pairs_of(held["train"]), pairs_of(held["validation"])
    # A partition of the whole text, not only its end, each source with its target.
    assert len(validation) == 10 and sorted(train + validation) == sorted(pairs)
    assert {pairs.index(pair) // 100 for pair in validation} == {0, 1}
    assert pairs_of(again["train"]) == train and pairs_of(again["validation"]) == validation
