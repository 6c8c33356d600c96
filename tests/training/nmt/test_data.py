"""The sentence pairs of a run: both directions, files of both kinds, what is dropped, cut or held out."""

import json
import re
from dataclasses import replace
from pathlib import Path

from transformers import AutoTokenizer

from ngram_wdr_hf.training.nmt.arguments import NmtDataArguments, NmtModelArguments, parse_nmt_arguments
from ngram_wdr_hf.training.nmt.data import load_pairs, tokenize_nmt
from ngram_wdr_hf.training.nmt.model import build_nmt_model
from tests.support.nmt_runs import LANGUAGES, NUM_PAIRS, QUICK, run, toy_pairs, translations_of, write_sides
from tests.support.scripts import as_arguments, metrics_of


def write_json(folder: Path, split: str, pairs: list[tuple[str, str]], nested: bool) -> list[str]:
    """JSON lines, as arguments."""
    rows = [dict(zip(LANGUAGES.values(), pair, strict=True)) for pair in pairs]
    rows = [{"id": i, "translation": row} if nested else row for i, row in enumerate(rows)]
    path = folder / f"{split}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [f"--{split}_file", str(path)]


def test_reverse_with_text_files_and_json_lines(marian, pairs, tmp_path):
    """`--reverse`, or the languages' fields the other way round: the same run."""
    options = ["--model_name_or_path", marian, *QUICK]
    (reverse,) = run(*options, *pairs, "--reverse", "--output_dir", str(tmp_path / "text"))
    files = [
        argument
        for seed, (split, count) in enumerate(NUM_PAIRS.items())
        for argument in write_json(tmp_path, split, toy_pairs(count, seed), nested=True)
    ]
    languages = ["--source_lang", "de", "--target_lang", "en"]
    (from_json,) = run(*options, *files, *languages, "--output_dir", str(tmp_path / "json"))
    expected = [(german, english) for english, german in toy_pairs(NUM_PAIRS["test"], seed=2)]
    assert [(row.source, row.reference) for row in reverse.translated] == expected
    assert from_json.translated == reverse.translated and from_json.translations == reverse.translations
    texts = (tmp_path / "text" / "model.safetensors").read_bytes()
    assert (tmp_path / "json" / "model.safetensors").read_bytes() == texts
    # Swapped languages and `--reverse` together give the direction of the files.
    splits = load_pairs(parse_nmt_arguments([*files, *languages, "--reverse"], "").data, True, print)
    assert splits["test"][0] == dict(zip(("source", "target"), toy_pairs(22, 2)[0], strict=True))


def test_json_lines_of_both_kinds(tmp_path):
    """Files may have the languages at the top level or in a field, among other fields."""
    files = [
        *write_json(tmp_path, "train", toy_pairs(9, 0), True),
        *write_json(tmp_path, "test", toy_pairs(3, 1), False),
    ]
    arguments = parse_nmt_arguments([*files, *as_arguments(source_lang="en", target_lang="de")], "").data
    splits = load_pairs(replace(arguments, validation_percentage=40), True, print)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 5, "validation": 4, "test": 3}
    assert list(zip(splits["test"]["source"], splits["test"]["target"], strict=True)) == toy_pairs(3, 1)


def test_test_set_without_references(marian, pair_files, tmp_path, capsys):
    """A test set without references is translated but not scored."""
    options = ["--model_name_or_path", marian, *pair_files["train"], *pair_files["validation"], *QUICK]
    run(*options, *pair_files["test"][:2], "--output_dir", str(tmp_path / "run"), "--num_examples", "2")
    printed = capsys.readouterr().out
    assert sum(line.startswith("test: ") for line in printed.splitlines()) == 1
    metrics, rows = metrics_of(tmp_path / "run"), translations_of(tmp_path / "run")
    assert list(metrics["splits"]) == ["validation"]
    assert [row["source"] for row in rows] == [pair[0] for pair in toy_pairs(22, 2)]
    assert all(row["reference"] is None and row["plain"] for row in rows)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert (
        len(re.findall(r"^source ", card, flags=re.MULTILINE)) == 2 and "reference" not in card.split("## Sample")[1]
    )


def test_pairs_that_are_empty_or_too_long(marian, tmp_path, capsys):
    """Such pairs are dropped from the training set, or truncated, and counted."""
    train, short, long = toy_pairs(60, 0), toy_pairs(10, 1), ("the cat sees the mouse . " * 9, "die Katze . " * 30)
    files = write_sides(tmp_path, "train", [("", "nichts"), *train, ("nothing", "  "), long, long])
    files += write_sides(tmp_path, "validation", [*short, ("", "")])
    files += write_sides(tmp_path, "test", [*short, long])
    options = ["--model_name_or_path", marian, *files, *QUICK, "--max_steps", "1", "--eval_strategy", "no"]
    run(*options, "--max_length", "20", "--output_dir", str(tmp_path / "run"))
    printed = capsys.readouterr().out
    for split, *figures in (
        ("train", "2 of 64"),
        ("validation", "1 of 11"),
        ("train", "2 of 62"),
        ("test", "1 of 11", "64"),
    ):
        lines = [line for line in printed.splitlines() if split in line and all(figure in line for figure in figures)]
        assert len(lines) == 1, (split, figures)
    assert "train: 60 pairs in " in printed
    metrics = metrics_of(tmp_path / "run")
    assert metrics["splits"]["validation"]["num_sentences"] == 10
    # The file has the full sentence; only the first 64 tokens of its reference are scored.
    rows, tokenizer = translations_of(tmp_path / "run"), AutoTokenizer.from_pretrained(marian)
    assert len(rows) == 11 and rows[-1]["source"] == long[0]
    lengths = [len(tokenizer(pair[1]).input_ids) for pair in short]
    assert metrics["splits"]["test"]["num_tokens"] == sum(lengths) + 64 and len(tokenizer(long[1]).input_ids) > 64
    # Without `max_length`, training pairs are truncated; with a ratio, unequal ones are dropped.
    splits = load_pairs(parse_nmt_arguments([*options, "--validation_percentage", "50"], "").data, True, print)
    model = build_nmt_model(NmtModelArguments(model_name_or_path=marian), tokenizer)
    tokenize_nmt(splits, tokenizer, model, NmtDataArguments(num_workers=1), 0, print)
    assert re.search(r"train: truncated 2 of 62 .* 64 tokens", capsys.readouterr().out)
    tokenize_nmt(splits, tokenizer, model, NmtDataArguments(num_workers=1, max_length_ratio=1.01), 0, print)
    lengths = [[len(tokenizer(text).input_ids) for text in pair] for pair in [*train, long, long]]
    unequal = sum(min(max(pair), 64) > 1.01 * min(min(pair), 64) for pair in lengths)
    assert 0 < unequal < 62
    assert f"train: dropped {unequal} of 62 " in capsys.readouterr().out


def test_validation_pairs_are_held_out(pair_files):
    arguments = parse_nmt_arguments([*pair_files["train"], "--validation_percentage", "10"], "").data
    one, same = (load_pairs(arguments, True, print) for _ in range(2))
    assert [len(one[split]) for split in ("train", "validation")] == [180, 20]
    assert one["validation"][:] == same["validation"][:]
    # A random sample, not the last pairs.
    assert one["validation"]["source"][:] != [pair[0] for pair in toy_pairs(200, 0)[-20:]]
    all_sources = sorted(source for split in one.values() for source in split["source"])
    assert all_sources == sorted(pair[0] for pair in toy_pairs(200, 0))
