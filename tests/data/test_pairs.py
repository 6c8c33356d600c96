"""Sentence pairs from parallel files, JSON lines, folders and the built-in ones, and invalid input."""

import json
from pathlib import Path

import pytest
from datasets import Dataset, Features, Translation, Value

from ngram_wdr_hf.data.english_german import english_german
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.pairs import (
    Languages,
    drop_empty,
    has_references,
    hold_out_pairs,
    load_json_pairs,
    load_pair_dataset,
    load_pair_files,
    reverse,
    texts_of_pairs,
)
from ngram_wdr_hf.training.nmt import data as nmt_data
from ngram_wdr_hf.training.nmt.arguments import NmtDataArguments
from ngram_wdr_hf.training.nmt.data import load_pairs
from tests.support.errors import assert_names, raises_naming
from tests.support.texts import write

ENGLISH_GERMAN = Languages("en", "de")
PAIRS = [("the cat", "die Katze"), ("a dog", "ein Hund"), ("übermorgen 🤗", "日本語")]


def pairs_of(rows: Dataset) -> list[tuple[str, str | None]]:
    assert rows.column_names == ["source", "target"]
    return list(zip(rows["source"][:], rows["target"][:], strict=True))


def rows_of(*pairs: tuple[str | None, str | None]) -> Dataset:
    source, target = zip(*pairs, strict=True)
    features = Features({"source": Value("string"), "target": Value("string")})
    return Dataset.from_dict({"source": source, "target": target}, features)


def json_lines(*rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def as_fields(pair: tuple[str, str]) -> dict[str, str]:
    return {"en": pair[0], "de": pair[1]}


def write_pairs(folder: Path, split: str, pairs=PAIRS) -> dict[str, list[str]]:
    """Write a file for each side; return the options that name them."""
    return {
        f"{split}_{side}": [write(folder / f"{split}.{side}", "".join(f"{pair[i]}\n" for pair in pairs))]
        for i, side in enumerate(("source", "target"))
    }


def load_train(tmp_path: Path, source: str | bytes, target: str | bytes) -> list[tuple[str, str]]:
    paths = [[write(tmp_path / name, text)] for name, text in (("source", source), ("target", target))]
    return pairs_of(load_pair_files({"train": tuple(paths)})["train"])


def load_json(tmp_path: Path, content: str | bytes, languages: Languages = ENGLISH_GERMAN) -> Dataset:
    return load_json_pairs({"train": [write(tmp_path / "train.jsonl", content)]}, languages)["train"]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_parallel_files(tmp_path, line_break, mark, is_ended):
    source, target = (line_break.join(texts) + line_break * is_ended for texts in zip(*PAIRS, strict=True))
    # Only one side has these line breaks.
    assert load_train(tmp_path, mark + source, "\n".join(pair[1] for pair in PAIRS)) == PAIRS
    assert load_train(tmp_path, "\n".join(pair[0] for pair in PAIRS), mark + target) == PAIRS


def test_several_files_a_side(tmp_path):
    """Files are concatenated; each may begin with a byte order mark."""
    sources = [write(tmp_path / "b.en", "\ufeff1\n2"), write(tmp_path / "a.en", "\ufeff3\n")]
    targets = [write(tmp_path / "b.de", "one\n"), write(tmp_path / "a.de", "\ufefftwo\r\nthree")]
    splits = load_pair_files({"train": (sources, targets), "test": (sources[1:], targets[:1])})
    assert {split: pairs_of(rows) for split, rows in splits.items()} == {
        "train": [("1", "one"), ("2", "two"), ("3", "three")],
        "test": [("3", "one")],
    }


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_only_line_breaks_end_a_line(tmp_path, separator):
    source = f"one{separator}two"
    assert len(source.splitlines()) == 2
    assert load_train(tmp_path, f"{source}\nthree\n", "eins zwei\ndrei\n") == [
        (source, "eins zwei"),
        ("three", "drei"),
    ]
    assert load_train(tmp_path, f"three{separator}\n\n", f"{separator}drei\nzwei\n") == [
        (f"three{separator}", f"{separator}drei"),
        ("", "zwei"),
    ]


def test_empty_lines_keep_the_alignment(tmp_path):
    expected = [("", "eins"), (" ", "zwei"), ("three", ""), ("four", "vier"), ("", "")]
    assert load_train(tmp_path, "\n \nthree\nfour\n\n", "eins\nzwei\n\nvier\n\n") == expected


def test_spaces_around_a_sentence_stay(tmp_path):
    assert load_train(tmp_path, " a b \t\n", "c\n") == [(" a b \t", "c")]


def test_paths_are_not_patterns(tmp_path):
    write(tmp_path / "x1", "other\n")
    assert load_train(tmp_path, "a\n", "b\n") == [("a", "b")]
    rows = load_pair_files({"train": ([write(tmp_path / "x[1]", "a\n")], [write(tmp_path / "x*", "b\n")])})["train"]
    assert pairs_of(rows) == [("a", "b")]


def test_sentences_without_translations(tmp_path):
    splits = load_pair_files({"test": ([write(tmp_path / "test.en", "a\n\nb\n")], ())})
    assert pairs_of(splits["test"]) == [("a", None), ("", None), ("b", None)]
    assert not has_references(splits["test"])
    assert has_references(rows_of(("a", None), ("b", "c"))) and has_references(rows_of(*PAIRS))


@pytest.mark.parametrize("wrap", [lambda fields: fields, lambda fields: {"id": "7", "translation": fields}])
def test_json_lines(tmp_path, wrap):
    rows = [wrap({**as_fields(pair), "fr": "non"}) for pair in PAIRS]
    paths = [write(tmp_path / f"{i}.jsonl", json_lines(*part)) for i, part in enumerate((rows[:2], rows[2:]))]
    splits = load_json_pairs({"train": paths, "test": paths[1:]}, ENGLISH_GERMAN)
    assert {split: pairs_of(rows) for split, rows in splits.items()} == {"train": PAIRS, "test": PAIRS[2:]}
    other_way = load_json_pairs({"train": paths}, Languages("de", "en"))["train"]
    assert pairs_of(other_way) == [(german, english) for english, german in PAIRS]


def test_json_texts_stay_as_they_are(tmp_path):
    pairs = [(" one\u2028two\x85\n", "\r\ndrei "), ("2020-01-01", "17"), ("", "null")]
    assert pairs_of(load_json(tmp_path, json_lines(*map(as_fields, pairs)))) == pairs
    assert pairs_of(load_json(tmp_path, "\ufeff" + json_lines(*map(as_fields, pairs)))) == pairs


def test_json_without_a_side(tmp_path):
    """A row without its translation is kept here; `drop_empty` reports it later."""
    content = json_lines({"en": "a", "de": "b"}, {"en": "c"}, {"en": "d", "de": None})
    assert pairs_of(load_json(tmp_path, content)) == [("a", "b"), ("c", None), ("d", None)]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("is_nested", [True, False])
def test_folder(tmp_path, kind, is_nested):
    for split, part in (("train", PAIRS[:2]), ("validation", PAIRS[1:]), ("test", PAIRS[2:])):
        fields = [as_fields(pair) for pair in part]
        rows = Dataset.from_list([{"translation": row} for row in fields] if is_nested else fields)
        getattr(rows, {"parquet": "to_parquet", "jsonl": "to_json"}[kind])(tmp_path / f"{split}.{kind}")
    splits = load_pair_dataset(str(tmp_path), None, ENGLISH_GERMAN)
    assert {split: pairs_of(rows) for split, rows in splits.items()} == {
        "train": PAIRS[:2],
        "validation": PAIRS[1:],
        "test": PAIRS[2:],
    }


@pytest.mark.parametrize(
    "features",
    [
        # The format of WMT and OPUS on the Hub.
        {"id": Value("string"), "translation": Translation(languages=["de", "en"])},
        {"id": Value("string"), "translation": {"de": Value("large_string"), "en": Value("large_string")}},
    ],
)
def test_features_of_translation_sets(tmp_path, features):
    rows = {"id": ["0", "1", "2"], "translation": [as_fields(pair) for pair in PAIRS]}
    Dataset.from_dict(rows, Features(features)).to_parquet(tmp_path / "train.parquet")
    assert pairs_of(load_pair_dataset(str(tmp_path), None, ENGLISH_GERMAN)["train"]) == PAIRS
    with raises_naming(InputError, "--target_lang", "`fr`", "de, en"):
        load_pair_dataset(str(tmp_path), None, Languages("en", "fr"))


def test_configurations(tmp_path):
    settings = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("de-en", "fr-en"))
    write(tmp_path / "README.md", f"---\nconfigs:\n{settings}---\n")
    for name in ("de-en", "fr-en"):
        write(tmp_path / f"{name}.jsonl", json_lines({name[:2]: name, "en": "a"}))
    rows = load_pair_dataset(str(tmp_path), "fr-en", Languages("fr", "en"))["train"]
    assert pairs_of(rows) == [("fr-en", "a")]
    with raises_naming(InputError, str(tmp_path), "de-en", "fr-en"):
        load_pair_dataset(str(tmp_path), None, Languages("fr", "en"))


def test_reverse_swaps_the_sides():
    splits = {"train": rows_of(*PAIRS), "test": rows_of(*PAIRS[:1], ("a", None))}
    reversed_splits = reverse(splits)
    assert list(reversed_splits) == ["train", "test"]
    assert pairs_of(reversed_splits["train"]) == [(german, english) for english, german in PAIRS]
    assert pairs_of(reversed_splits["test"]) == [PAIRS[0][::-1], (None, "a")]
    assert {split: pairs_of(rows) for split, rows in reverse(reversed_splits).items()} == {
        split: pairs_of(rows) for split, rows in splits.items()
    }


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


def test_held_out_pairs():
    pairs = [(f"source {i}", f"target {i}") for i in range(200)]
    splits = {"train": rows_of(*pairs), "test": rows_of(*PAIRS)}
    held = hold_out_pairs(splits, 5.0)
    train, validation = pairs_of(held["train"]), pairs_of(held["validation"])
    assert len(validation) == 10
    # A partition of the pairs, each source with its target.
    assert sorted(train + validation) == sorted(pairs)
    assert held["test"] is splits["test"]
    again = hold_out_pairs({"train": rows_of(*pairs)}, 5.0)
    assert pairs_of(again["train"]) == train and pairs_of(again["validation"]) == validation
    # From the whole text, not only its end.
    assert {pairs.index(pair) // 100 for pair in validation} == {0, 1}


def test_nothing_is_held_out_if_there_is_a_validation_set():
    rows = rows_of(*PAIRS)
    for splits in ({"train": rows, "validation": rows}, {"test": rows}):
        assert hold_out_pairs(splits, 50.0) is splits


def test_texts_of_both_sides():
    assert sorted(texts_of_pairs(rows_of(*PAIRS))) == sorted(text for pair in PAIRS for text in pair)


def test_files_that_are_not_parallel(tmp_path):
    paths = [write(tmp_path / name, text) for name, text in (("1.en", "a\n"), ("2.en", "b\nc\n"), ("all.de", "d\n\n"))]
    counts = (f"{paths[0]}, {paths[1]} has 3", f"{paths[2]} has 2")
    with raises_naming(InputError, "--validation_source", "--validation_target", *counts):
        load_pair_files({"validation": (paths[:2], paths[2:])})


@pytest.mark.parametrize("is_source", [True, False])
def test_bad_files(tmp_path, is_source):
    good = write(tmp_path / "good", "a\n")

    def load(bad: str):
        return load_pair_files({"train": ([bad], [good]) if is_source else ([good], [bad])})

    with raises_naming(InputError, str(tmp_path / "missing")):
        load(str(tmp_path / "missing"))
    with raises_naming(InputError, str(tmp_path)):
        load(str(tmp_path))
    with raises_naming(InputError, str(tmp_path / "nothing"), "empty"):
        load(write(tmp_path / "nothing", ""))
    with raises_naming(InputError, str(tmp_path / "latin1"), "UTF-8"):
        load(write(tmp_path / "latin1", "café\n".encode("latin-1")))


def test_targets_without_sources(tmp_path):
    with raises_naming(InputError, "--test_target", "--test_source"):
        load_pair_files({"test": ((), [write(tmp_path / "test.de", "a\n")])})


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("the cat\tdie Katze\n", ["train.jsonl", "JSON lines"]),
        ('{"en": "a", "de": "b"}\n{"en":', ["train.jsonl", "JSON lines"]),
        ('"a"\n"b"\n', ["train.jsonl", "JSON lines"]),
        ("", ["train.jsonl", "empty"]),
        (json_lines({"en": "a", "fr": "b"}), ["--target_lang", "`de`", "train", "en, fr"]),
        (json_lines({"id": 3, "de": "b"}), ["--source_lang", "`en`", "train", "de."]),
        (json_lines({"en": 1, "de": "b"}), ["--source_lang", "`en`", "train", "de."]),
        (json_lines({"id": 3}), ["--source_lang", "`en`", "train", "none"]),
        (json_lines({"translation": {"en": "a", "it": "b"}}), ["--target_lang", "`de`", "train", "en, it"]),
    ],
)
def test_bad_json(tmp_path, content, names):
    with raises_naming(InputError, *names):
        load_json(tmp_path, content)


def test_missing_json_file(tmp_path):
    with raises_naming(InputError, "missing.jsonl"):
        load_json_pairs({"train": [str(tmp_path / "missing.jsonl")]}, ENGLISH_GERMAN)


def test_json_that_is_not_utf8(tmp_path):
    with raises_naming(InputError, "train.jsonl"):
        load_json(tmp_path, '{"en": "café", "de": "b"}\n'.encode("latin-1"))


@pytest.mark.parametrize("content", ["\n\n", "\ufeff"])
def test_files_without_rows(tmp_path, content):
    """The file is not empty, but has no rows."""
    with raises_naming(InputError, "train.jsonl"):
        load_json(tmp_path, content)
    if content == "\ufeff":
        with raises_naming(InputError, str(tmp_path / "source")):
            load_train(tmp_path, content, "a\n")


def test_translation_that_holds_no_languages(tmp_path):
    content = json_lines({"translation": "b", "en": "a", "de": "c"})
    assert pairs_of(load_json(tmp_path, content)) == [("a", "c")]
    with raises_naming(InputError, "--source_lang", "`fr`", "en"):
        load_json(tmp_path, content, Languages("fr", "de"))


def test_languages_that_were_not_named(tmp_path):
    content = json_lines({"en": "a", "de": "b", "id": 3})
    with raises_naming(InputError, "--source_lang", "train", "en, de"):
        load_json(tmp_path, content, Languages(None, None))
    with raises_naming(InputError, "--target_lang", "train", "en, de"):
        load_json(tmp_path, content, Languages("en", None))


@pytest.mark.parametrize("name", ["nobody/nothing", "./missing"])
def test_unknown_dataset(name):
    with raises_naming(InputError, name):
        load_pair_dataset(name, None, ENGLISH_GERMAN)


@pytest.mark.parametrize(
    ("files", "config", "names"),
    [
        ({}, None, ["data files"]),
        ({"train.jsonl": '{"en": "a"}\n{"en":'}, None, ["JSON"]),
        ({"train.jsonl": '{"en": "a", "de": "b"}'}, "other", ["'other'"]),
        ({"train.txt": "a"}, None, ["--source_lang", "`en`", "text"]),
        ({"README.md": "---\nconfigs:\n- config_name: x\n  data_files:\n  - split: mine\n    path: a.txt\n---\n",
          "a.txt": "a"}, None, ["train, validation, test", "mine"]),
    ],
)  # fmt: skip
def test_bad_folders(tmp_path, files, config, names):
    for name, content in files.items():
        write(tmp_path / name, content)
    with raises_naming(InputError, str(tmp_path), *names):
        load_pair_dataset(str(tmp_path), config, ENGLISH_GERMAN)


def test_pairs_that_cannot_be_reversed():
    splits = {"train": rows_of(*PAIRS), "test": rows_of(("a", None), ("b", None))}
    with raises_naming(InputError, "--reverse", "test"):
        reverse(splits)


@pytest.mark.parametrize("pairs", [[("", "b"), (" ", "c")], [("", None), ("\t", None)], [("a", ""), ("", "b")]])
def test_only_empty_pairs(pairs):
    messages = []
    with raises_naming(InputError, "test set"):
        drop_empty({"train": rows_of(*PAIRS), "test": rows_of(*pairs)}, messages.append)
    assert not messages


@pytest.mark.parametrize("percentage", [0.0, 1.0, 100.0, 200.0, -5.0, float("nan"), float("inf")])
def test_pairs_that_cannot_be_split(percentage):
    with pytest.raises(InputError):
        hold_out_pairs({"train": rows_of(*PAIRS)}, percentage)


def test_too_few_pairs_to_split():
    with raises_naming(InputError, "--validation_percentage", "2.0", "3 training pairs"):
        hold_out_pairs({"train": rows_of(*PAIRS)}, 2.0)


def load(do_train: bool = True, notify=None, **options) -> dict[str, Dataset]:
    messages = []
    splits = load_pairs(NmtDataArguments(**options), do_train, messages.append if notify is None else notify)
    assert notify is not None or not messages
    return splits


def test_built_in_pairs_are_the_default(monkeypatch):
    sizes = {"train": 60, "validation": 5, "test": 7}
    monkeypatch.setattr(nmt_data, "english_german", lambda: english_german(sizes))
    expected = {split: pairs_of(rows) for split, rows in english_german(sizes).items()}
    assert {split: len(pairs) for split, pairs in expected.items()} == sizes
    assert {split: pairs_of(rows) for split, rows in load().items()} == expected
    assert {split: pairs_of(rows) for split, rows in load(reverse=True).items()} == {
        split: [(german, english) for english, german in pairs] for split, pairs in expected.items()
    }
    evaluated = load(do_train=False)
    assert set(evaluated) == {"validation", "test"} and pairs_of(evaluated["test"]) == expected["test"]


def test_options_of_text_files(tmp_path):
    options = write_pairs(tmp_path, "train") | write_pairs(tmp_path, "validation", PAIRS[:1])
    options["test_source"] = write_pairs(tmp_path, "test", PAIRS[1:])["test_source"]
    splits = load(**options)
    assert {split: pairs_of(rows) for split, rows in splits.items()} == {
        "train": PAIRS,
        "validation": PAIRS[:1],
        "test": [(source, None) for source, _ in PAIRS[1:]],
    }
    with raises_naming(InputError, "--reverse", "test"):
        load(**options, reverse=True)


def test_options_of_json_lines_and_folders(tmp_path):
    path = write(tmp_path / "train.jsonl", json_lines(*map(as_fields, PAIRS), {"en": "", "de": "x"}))
    languages = {"source_lang": "de", "target_lang": "en", "validation_percentage": 30.0}
    for options in ({"train_file": [path]}, {"dataset_name": str(tmp_path)}):
        for is_reversed in (False, True):
            messages = []
            splits = load(**options, **languages, reverse=is_reversed, notify=messages.append)
            assert {split: len(rows) for split, rows in splits.items()} == {"train": 2, "validation": 1}
            pairs = [pair if is_reversed else pair[::-1] for pair in PAIRS]
            assert sorted(pairs_of(splits["train"]) + pairs_of(splits["validation"])) == sorted(pairs)
            (message,) = messages
            assert_names(message, "1 of 4", "train")


def test_bad_options(tmp_path):
    train, test = write_pairs(tmp_path, "train"), write_pairs(tmp_path, "test")
    with raises_naming(InputError, "--do_train"):
        load(**test)
    assert list(load(do_train=False, **test)) == ["test"]
    with raises_naming(InputError, "--train_target"):
        load(train_source=train["train_source"])
    with raises_naming(InputError, "--validation_target"):
        load(**train, validation_source=train["train_source"])
    with raises_naming(InputError, "--validation_target", "--validation_source"):
        load(**train, validation_target=train["train_target"])
    json_path = [write(tmp_path / "train.jsonl", json_lines(as_fields(PAIRS[0])))]
    with raises_naming(InputError, "--source_lang", "train", "en, de"):
        load(train_file=json_path)
    for options in ({**train, "test_file": json_path}, {"test_file": json_path, "dataset_name": "any"}):
        with raises_naming(InputError, "--dataset_name"):
            load(**options)
    with raises_naming(InputError, "--validation_percentage", "3 training pairs"):
        load(**train)
