"""Sentence pairs from parallel files, JSON lines and folders."""

import json
from pathlib import Path

import pytest
from datasets import Dataset, Features, Translation, Value

from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.pairs import (
    drop_empty,
    has_references,
    hold_out_pairs,
    load_json_pairs,
    load_pair_dataset,
    load_pair_files,
    reverse,
    texts_of_pairs,
)
from tests.support.errors import assert_names, raises_naming
from tests.support.texts import write

PAIRS = [("the cat", "die Katze"), ("a dog", "ein Hund"), ("übermorgen 🤗", "日本語")]


def pairs_of(rows: Dataset) -> list[tuple[str, str | None]]:
    assert rows.column_names == ["source", "target"]
    return list(zip(rows["source"][:], rows["target"][:], strict=True))


def rows_of(*pairs: tuple[str | None, str | None]) -> Dataset:
    source, target = zip(*pairs, strict=True)
    return Dataset.from_dict(
        {"source": source, "target": target}, Features(source=Value("string"), target=Value("string"))
    )


def json_lines(*rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_fields(pair: tuple[str, str]) -> dict[str, str]:
    return {"en": pair[0], "de": pair[1]}


def load_train(tmp_path: Path, source: str | bytes, target: str | bytes) -> list[tuple[str, str]]:
    paths = [[write(tmp_path / name, text)] for name, text in (("source", source), ("target", target))]
    return pairs_of(load_pair_files({"train": tuple(paths)})["train"])


def load_json(tmp_path: Path, content: str, *languages: str | None) -> Dataset:
    path = write(tmp_path / "train.jsonl", content)
    return load_json_pairs({"train": [path]}, *(languages or ("en", "de")))["train"]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_parallel_files(tmp_path, line_break, mark, is_ended):
    source, target = (line_break.join(texts) + line_break * is_ended for texts in zip(*PAIRS, strict=True))
    # Only one side has these line breaks.
    assert load_train(tmp_path, mark + source, "\n".join(pair[1] for pair in PAIRS)) == PAIRS
    assert load_train(tmp_path, "\n".join(pair[0] for pair in PAIRS), mark + target) == PAIRS


def test_several_files_a_side(tmp_path):
    """Files are concatenated; each may begin with a byte order mark. Their names are no patterns."""
    sources = [write(tmp_path / "b*.en", "\ufeff1\n2"), write(tmp_path / "a.en", "\ufeff3\n")]
    targets = [write(tmp_path / "b[1].de", "one\n"), write(tmp_path / "a.de", "\ufefftwo\r\nthree")]
    splits = load_pair_files({"train": (sources, targets), "test": (sources[1:], ())})
    assert pairs_of(splits["train"]) == [("1", "one"), ("2", "two"), ("3", "three")]
    assert pairs_of(splits["test"]) == [("3", None)]
    assert not has_references(splits["test"])
    assert has_references(rows_of(("a", None), ("b", "c"))) and has_references(rows_of(*PAIRS))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_line_breaks_end_a_line(tmp_path, separator):
    source = f"one{separator}two"
    assert len(source.splitlines()) == 2
    assert load_train(tmp_path, f"{source}\nthree\n", "eins\ndrei\n") == [(source, "eins"), ("three", "drei")]


def test_empty_lines_and_spaces_stay(tmp_path):
    expected = [("", "eins"), (" ", "zwei"), (" three \t", ""), ("four", "vier"), ("", "")]
    assert load_train(tmp_path, "\n \n three \t\nfour\n\n", "eins\nzwei\n\nvier\n\n") == expected


def test_files_that_are_not_parallel(tmp_path):
    paths = [write(tmp_path / name, text) for name, text in (("1.en", "a\n"), ("2.en", "b\nc\n"), ("all.de", "d\n\n"))]
    with raises_naming(InputError, f"{paths[0]}, {paths[1]} has 3", f"{paths[2]} has 2"):
        load_pair_files({"validation": (paths[:2], paths[2:])})
    with raises_naming(InputError, f"{paths[2]} has 2"):
        load_pair_files({"test": ((), paths[2:])})


@pytest.mark.parametrize("wrap", [lambda fields: fields, lambda fields: {"id": "7", "translation": fields}])
def test_json_lines(tmp_path, wrap):
    rows = [wrap({**as_fields(pair), "fr": "non"}) for pair in PAIRS]
    paths = [write(tmp_path / f"[{i}].jsonl", json_lines(*part)) for i, part in enumerate((rows[:2], rows[2:]))]
    splits = load_json_pairs({"train": paths, "test": paths[1:]}, "en", "de")
    assert {split: pairs_of(rows) for split, rows in splits.items()} == {"train": PAIRS, "test": PAIRS[2:]}
    other_way = load_json_pairs({"train": paths}, "de", "en")["train"]
    assert pairs_of(other_way) == [(german, english) for english, german in PAIRS]


def test_json_texts_stay_as_they_are(tmp_path):
    pairs = [(" one\u2028two\x85\n", "\r\ndrei "), ("2020-01-01", "17"), ("", "null"), ("d", None)]
    assert pairs_of(load_json(tmp_path, json_lines(*map(as_fields, pairs)))) == pairs
    assert pairs_of(load_json(tmp_path, "\ufeff" + json_lines(*map(as_fields, pairs), {"en": "c"})))[-1] == ("c", None)


@pytest.mark.parametrize(
    ("fields", "languages", "names"),
    [
        ({"en": "a", "fr": "b"}, ("en", "de"), ["target_lang", "de", "fr"]),
        ({"en": 1, "de": "b"}, ("en", "de"), ["source_lang", "en", "de."]),
        ({"id": 3}, ("en", "de"), ["source_lang", "none"]),
        ({"translation": {"en": "a", "it": "b"}}, ("en", "de"), ["target_lang", "it"]),
        ({"en": "a", "de": "b"}, (None, "de"), ["source_lang", "en, de"]),
        ({"en": "a", "de": "b"}, ("en", "en"), ["target_lang", "de."]),
    ],
)
def test_languages_that_are_missing(tmp_path, fields, languages, names):
    with raises_naming(InputError, "train", *names):
        load_json(tmp_path, json_lines(fields), *languages)


@pytest.mark.parametrize(
    "features",
    [
        # The format of WMT and OPUS on the Hub.
        {"id": Value("string"), "translation": Translation(languages=["de", "en"])},
        {"id": Value("string"), "translation": {"de": Value("large_string"), "en": Value("large_string")}},
    ],
)
def test_dataset_in_a_folder(tmp_path, features):
    rows = {"id": ["0", "1", "2"], "translation": [as_fields(pair) for pair in PAIRS]}
    for split in ("test", "train"):
        Dataset.from_dict(rows, Features(features)).to_parquet(tmp_path / f"{split}.parquet")
    splits = load_pair_dataset(str(tmp_path), None, "en", "de")
    assert list(splits) == ["train", "test"] and all(pairs_of(rows) == PAIRS for rows in splits.values())
    with raises_naming(InputError, str(tmp_path), "target_lang", "fr", "de"):
        load_pair_dataset(str(tmp_path), None, "en", "fr")


def test_sides_and_texts():
    rows = rows_of(*PAIRS, ("a", None))
    backward = reverse({"train": rows})
    assert pairs_of(backward["train"]) == [*[(german, english) for english, german in PAIRS], (None, "a")]
    assert texts_of_pairs(rows_of(*PAIRS)) == [pair[side] for side in (0, 1) for pair in PAIRS]


def test_empty_pairs_are_dropped_and_counted():
    messages = []
    bad = [("", "b"), ("a", ""), (" \t\u2003", "b"), ("a", "\r\n"), (None, "b"), ("a", None), ("", "")]
    mixed = [PAIRS[0], *bad[:3], PAIRS[1], *bad[3:], PAIRS[2]]
    splits = {"train": rows_of(*mixed), "validation": rows_of(*PAIRS), "test": rows_of(("a", None), ("", None))}
    kept = drop_empty(splits, messages.append)
    assert pairs_of(kept["train"]) == pairs_of(kept["validation"]) == PAIRS
    # A set without any reference keeps its sources.
    assert pairs_of(kept["test"]) == [("a", None)]
    assert len(messages) == 2
    assert_names(messages[0], "7 of 10", "train")
    assert_names(messages[1], "1 of 2", "test")
    assert pairs_of(splits["train"]) == mixed
    for pairs in ([("", "b"), (" ", "c")], [("", None), ("\t", None)], [("a", ""), ("", "b")]):
        with raises_naming(InputError, "test set"):
            drop_empty({"test": rows_of(*pairs)}, messages.append)


def test_held_out_pairs_are_random():
    pairs = [(f"source {i}", f"target {i}") for i in range(200)]
    held, again = (hold_out_pairs({"train": rows_of(*pairs)}, 5.0) for _ in range(2))
    train, validation = pairs_of(held["train"]), pairs_of(held["validation"])
    # A partition of the whole text, not only its end, each source with its target.
    assert len(validation) == 10 and sorted(train + validation) == sorted(pairs)
    assert {pairs.index(pair) // 100 for pair in validation} == {0, 1}
    assert pairs_of(again["train"]) == train and pairs_of(again["validation"]) == validation
