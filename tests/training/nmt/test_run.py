"""`train_nmt.py`, from its arguments to what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import yaml
from sacrebleu.metrics import BLEU, CHRF
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel

import ngram_wdr_hf.training.nmt.run
from ngram_wdr_hf import WDRNgramMarianMTModel
from ngram_wdr_hf.evaluation.bleu import score_translations
from ngram_wdr_hf.training.common.models import build_nmt_model
from ngram_wdr_hf.training.common.run_folder import RunFolder
from ngram_wdr_hf.training.common.settings import others
from ngram_wdr_hf.training.nmt.arguments import (
    NmtDataArguments,
    NmtModelArguments,
    NmtReportArguments,
    NmtTrainingArguments,
    parse_nmt_arguments,
)
from ngram_wdr_hf.training.nmt.data import load_pairs, tokenize_nmt
from ngram_wdr_hf.training.nmt.translator import Translator

from tests.support.nmt_runs import (
    LANGUAGES,
    NUM_PAIRS,
    QUICK,
    SCRIPT,
    as_arguments,
    contents,
    metrics_of,
    run,
    toy_pairs,
    translations_of,
    write_sides,
)

pytest_plugins = ["tests.support.nmt_runs"]

LEAVES = ["README.md", "config.json", "generation_config.json", "lambda_sweep.png", "metrics.json"]
LEAVES += ["model.safetensors", "run.yaml", "test_translations.jsonl", "tokenizer.json", "training.png"]
# What evaluation alone has to be told again: nothing of it is a setting of the training.
SEARCH = as_arguments(num_beams=2, batch_tokens=256, lambda_grid="0 0.2 0.4 0.6", disable_tqdm="true")


def generate(folder: Path, sources: list[str], **options) -> list[str]:
    """One sentence at a time, by the saved model and what is saved with it."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [model.generate(**tokenizer(source, return_tensors="pt"), **options)[0] for source in sources]
    return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]


def by_lambda(split: dict, name: str) -> dict[float, float]:
    return dict(zip(split["lambda"], split[name], strict=True))


def test_a_run_and_what_it_leaves(finished_nmt):
    folder, printed = finished_nmt.folder, finished_nmt.printed
    for name in LEAVES:
        assert (folder / name).stat().st_size > 0, name
    metrics = metrics_of(folder)
    validation, test = metrics["splits"]["validation"], metrics["splits"]["test"]
    chosen = metrics["ensemble_lambda"]
    assert metrics["model"] == "wdr N=3" and metrics["settings"]["learning_rate"] == 1e-2
    assert validation["lambda"] == validation["perplexity_lambda"] == [0.0, 0.2, 0.4, 0.6]
    assert test["lambda"] == sorted({0.0, chosen})
    for name, count in (("validation", 24), ("test", 22)):
        split = metrics["splits"][name]
        assert split["num_sentences"] == count
        assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:.+", split["bleu_signature"])
        assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:yes\|nc:6\|nw:0\|.+", split["chrf_signature"])
        # A perplexity of some 350 tokens if it had learned nothing.
        assert 1 < min(split["token_perplexity"]) < 20
        assert split["next_word_loss"] < 4 and split["head_2_loss"] < 4
    # Each target is its words and an end.
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert test["num_tokens"] == sum(len(tokenizer(pair[1]).input_ids) for pair in toy_pairs(22, 2))

    evaluations = [entry for entry in metrics["history"] if "eval_perplexity" in entry]
    assert [entry["step"] for entry in evaluations] == [50, 100, 150]
    losses = [entry for entry in metrics["history"] if "head_2_loss" in entry]
    assert len(losses) == 150 and losses[-1]["loss"] < losses[0]["loss"] / 2
    best = min(evaluations, key=lambda entry: entry["eval_loss"])
    assert validation["token_perplexity"][0] == pytest.approx(best["eval_perplexity"], rel=1e-5)

    bleu, card = by_lambda(test, "bleu")[chosen], (folder / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"wdr N=3 +test +22 .* {bleu:.2f}\*", printed)
    assert f"{bleu:.2f} ★" in card and f"{by_lambda(test, 'chrf')[chosen]:.2f} ★" in card
    assert f"`{test['bleu_signature']}`" in card and "pipeline_tag: translation" in card
    examples = re.findall(r"source +(.+)\nreference +(.+)\nplain, λ=0 +(.+)", card)
    assert len(examples) == 5
    known = {(row["source"], row["reference"], row["plain"]) for row in translations_of(folder)}
    assert set(examples) <= known
    assert all(
        f"reference{' ' * (len(f'ensemble, λ={chosen:g}') - 9)}" in part for part in printed.split("source ")[1:]
    )


def test_the_figures_are_those_of_the_translations(finished_nmt):
    """By sacrebleu itself, from what the run leaves."""
    rows, metrics = translations_of(finished_nmt.folder), metrics_of(finished_nmt.folder)
    assert [(row["source"], row["reference"]) for row in rows] == toy_pairs(NUM_PAIRS["test"], seed=2)
    test = metrics["splits"]["test"]
    references = [[row["reference"] for row in rows]]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        for side, value in (("plain", 0.0), ("hypothesis", metrics["ensemble_lambda"])):
            expected = metric.corpus_score([row[side] for row in rows], references).score
            assert by_lambda(test, name)[value] == pytest.approx(expected, abs=1e-9)
            assert expected > 1


def test_the_saved_model_translates_as_it_was_evaluated(finished_nmt):
    folder = finished_nmt.folder
    rows, metrics = translations_of(folder), metrics_of(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.ensemble_lambda == metrics["ensemble_lambda"]
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 64)
    sources = [row["source"] for row in rows]
    assert generate(folder, sources) == [row["hypothesis"] for row in rows]
    assert generate(folder, sources, ensemble_lambda=0.0) == [row["plain"] for row in rows]
    # The search is not without effect: other beams, other translations.
    assert generate(folder, sources, num_beams=1) != [row["hypothesis"] for row in rows]


def test_the_best_lambda_of_validation_is_chosen(finished_nmt):
    metrics = metrics_of(finished_nmt.folder)
    bleu = by_lambda(metrics["splits"]["validation"], "bleu")
    assert len(set(bleu.values())) > 1
    assert metrics["ensemble_lambda"] == max(bleu, key=bleu.get) == finished_nmt.result.ensemble_lambda


def with_bleu(monkeypatch, figures: list[float]) -> list[list[str]]:
    """Pretends that the first sets of translations had these BLEUs, the others 0; returns what was scored."""
    scored = []

    def score(hypotheses, references):
        scored.append(list(hypotheses))
        figure = figures[len(scored) - 1] if len(scored) <= len(figures) else 0.0
        return replace(score_translations(hypotheses, references), bleu=figure)

    monkeypatch.setattr(ngram_wdr_hf.training.nmt.run, "score_translations", score)
    return scored


def test_of_equally_good_lambdas_the_smallest_is_chosen(marian, pairs, tmp_path, monkeypatch):
    with_bleu(monkeypatch, [1.0, 5.0, 5.0, 2.0])
    options = [*QUICK, "--lambda_grid", "0.6", "0.4", "0.2", "--eval_strategy", "no"]
    (result,) = run("--model_name_or_path", marian, *pairs, "--output_dir", str(tmp_path / "run"), *options)
    # λ = 0 is always tried.
    assert list(result.translations["validation"]) == [0.0, 0.2, 0.4, 0.6]
    assert result.ensemble_lambda == 0.2 and list(result.translations["test"]) == [0.0, 0.2]
    assert WDRNgramMarianMTModel.from_pretrained(tmp_path / "run").config.ensemble_lambda == 0.2
    assert "λ is 0.2." in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


def test_the_model_card_tells_how_to_translate(finished_nmt, monkeypatch, capsys):
    monkeypatch.chdir(finished_nmt.folder.parent)
    (snippet,) = re.findall(r"```python\n(.*?)```", (finished_nmt.folder / "README.md").read_text(), flags=re.DOTALL)
    row = translations_of(finished_nmt.folder)[0]
    exec(snippet.replace("THIS_FOLDER", "run").replace("A sentence.", row["source"]), {})
    assert row["hypothesis"] in capsys.readouterr().out


def test_evaluation_alone(finished_nmt, pair_files, tmp_path, monkeypatch, capsys):
    """Without a word about the data, the run's own; nothing is written."""
    monkeypatch.chdir(tmp_path)
    before = contents(finished_nmt.folder)
    arguments = ["--do_train", "false", "--model_name_or_path", str(finished_nmt.folder), *SEARCH]
    (result,) = run(*arguments)
    expected = finished_nmt.result
    assert result.translations == expected.translations and result.translated == expected.translated
    assert result.ensemble_lambda == expected.ensemble_lambda
    for split, scores in result.scores.items():
        assert scores.nll_sums == pytest.approx(expected.scores[split].nll_sums)
    assert re.search(r"wdr N=3 +test +22 ", capsys.readouterr().out)
    # Without a validation set, λ is the model's own.
    (test,) = run(*arguments, *pair_files["test"])
    assert list(test.translations) == ["test"] and test.ensemble_lambda == expected.ensemble_lambda
    assert test.translated == expected.translated
    assert contents(finished_nmt.folder) == before and not any(tmp_path.iterdir())


def test_translate(finished_nmt, tmp_path, monkeypatch, capsys):
    """A sentence a line; an empty line keeps its place."""
    monkeypatch.chdir(tmp_path)
    rows = translations_of(finished_nmt.folder)
    lines, expected = ([row[side] for row in rows] for side in ("source", "hypothesis"))
    for place in (len(lines), 7, 0):
        lines.insert(place, "")
        expected.insert(place, "")
    lines[0] = "  \t"
    Path("text.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = ["--do_train", "false", "--model_name_or_path", str(finished_nmt.folder), *SEARCH]
    assert run(*arguments, "--translate", "text.en") == []
    assert capsys.readouterr().out == "\n".join(expected) + "\n"
    # Without a line break at its end, a file's last line counts as well; Windows' marks are no text.
    Path("text.en").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines[1:8]).encode())
    run(*arguments, "--translate", "text.en", "--translate_to", "text.de")
    assert capsys.readouterr().out == ""
    assert Path("text.de").read_text(encoding="utf-8") == "\n".join(expected[1:8]) + "\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.de", "text.en"]


def test_the_same_command_again_trains_nothing(finished_nmt, capsys):
    weights = (finished_nmt.folder / "model.safetensors").stat().st_mtime_ns
    before = metrics_of(finished_nmt.folder)
    (again,) = run(*finished_nmt.command)
    assert again.translations == finished_nmt.result.translations and again.history == finished_nmt.result.history
    assert "step " not in capsys.readouterr().out
    assert (finished_nmt.folder / "model.safetensors").stat().st_mtime_ns == weights
    assert metrics_of(finished_nmt.folder) == before


def write_json(folder: Path, split: str, pairs: list[tuple[str, str]], nested: bool) -> list[str]:
    """JSON lines, as arguments."""
    rows = [dict(zip(LANGUAGES.values(), pair, strict=True)) for pair in pairs]
    rows = [{"id": i, "translation": row} if nested else row for i, row in enumerate(rows)]
    path = folder / f"{split}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [f"--{split}_file", str(path)]


def test_the_other_direction_from_text_and_from_json(marian, pairs, tmp_path):
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
    # Reversed again, it is the direction of the files.
    splits = load_pairs(parse_nmt_arguments([*files, *languages, "--reverse"], "").data, True, print)
    assert splits["test"][0] == dict(zip(("source", "target"), toy_pairs(22, 2)[0], strict=True))


def test_json_lines_of_both_kinds(tmp_path):
    """A file may have the languages in a field, and another not, whatever else they hold."""
    files = [
        *write_json(tmp_path, "train", toy_pairs(9, 0), True),
        *write_json(tmp_path, "test", toy_pairs(3, 1), False),
    ]
    arguments = parse_nmt_arguments([*files, *as_arguments(source_lang="en", target_lang="de")], "").data
    splits = load_pairs(replace(arguments, validation_percentage=40), True, print)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 5, "validation": 4, "test": 3}
    assert list(zip(splits["test"]["source"], splits["test"]["target"], strict=True)) == toy_pairs(3, 1)


def test_a_tokenizer_is_used_again(finished_nmt, pairs, tmp_path):
    """In a new model, which has as many embeddings."""
    options = ["--tokenizer", str(finished_nmt.folder), *pairs, *QUICK, "--max_steps", "1", "--eval_strategy", "no"]
    (result,) = run(*options, "--output_dir", str(tmp_path / "run"), "--ngram_size", "2")
    tokenizer = (finished_nmt.folder / "tokenizer.json").read_bytes()
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == tokenizer
    config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").config
    assert config.vocab_size == len(AutoTokenizer.from_pretrained(finished_nmt.folder)) < 400
    assert (config.d_model, config.ngram_size, result.name) == (128, 2, "wdr N=2")


def test_a_test_set_without_references(marian, pair_files, tmp_path, capsys):
    """Is translated, and not scored."""
    options = ["--model_name_or_path", marian, *pair_files["train"], *pair_files["validation"], *QUICK]
    run(*options, *pair_files["test"][:2], "--output_dir", str(tmp_path / "run"), "--num_examples", "2")
    printed = capsys.readouterr().out
    assert printed.count("The test set has no references: it is translated, and not scored.\n") == 1
    metrics, rows = metrics_of(tmp_path / "run"), translations_of(tmp_path / "run")
    assert list(metrics["splits"]) == ["validation"]
    assert [row["source"] for row in rows] == [pair[0] for pair in toy_pairs(22, 2)]
    assert all(row["reference"] is None and row["plain"] for row in rows)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert (
        len(re.findall(r"^source ", card, flags=re.MULTILINE)) == 2 and "reference" not in card.split("## Sample")[1]
    )


def test_pairs_that_are_empty_or_too_long(marian, tmp_path, capsys):
    """Are dropped from the training set, or cut to what the model can see, and counted."""
    train, short, long = toy_pairs(60, 0), toy_pairs(10, 1), ("the cat sees the mouse . " * 9, "die Katze . " * 30)
    files = write_sides(tmp_path, "train", [("", "nichts"), *train, ("nothing", "  "), long, long])
    files += write_sides(tmp_path, "validation", [*short, ("", "")])
    files += write_sides(tmp_path, "test", [*short, long])
    options = ["--model_name_or_path", marian, *files, *QUICK, "--max_steps", "1", "--eval_strategy", "no"]
    run(*options, "--max_length", "20", "--output_dir", str(tmp_path / "run"))
    printed = capsys.readouterr().out
    for sentence in (
        "2 of 64 train pairs were dropped: a side of them is empty.",
        "1 of 11 validation pairs were dropped: a side of them is empty.",
        "2 of 62 train pairs were dropped: too long or too unequal.",
        "1 of 11 test pairs were cut to the 64 tokens that the model can see.",
    ):
        assert printed.count(f"{sentence}\n") == 1, sentence
    assert "train: 60 pairs in " in printed
    metrics = metrics_of(tmp_path / "run")
    assert metrics["splits"]["validation"]["num_sentences"] == 10
    # The whole of the long sentence is in the file, and its reference counts by its first 64 tokens alone.
    rows, tokenizer = translations_of(tmp_path / "run"), AutoTokenizer.from_pretrained(marian)
    assert len(rows) == 11 and rows[-1]["source"] == long[0]
    lengths = [len(tokenizer(pair[1]).input_ids) for pair in short]
    assert metrics["splits"]["test"]["num_tokens"] == sum(lengths) + 64 and len(tokenizer(long[1]).input_ids) > 64
    # Without a limit, those of the training are cut, too; with a ratio, unequal ones are dropped.
    splits = load_pairs(parse_nmt_arguments([*options, "--validation_percentage", "50"], "").data, True, print)
    model = build_nmt_model(NmtModelArguments(model_name_or_path=marian), tokenizer)
    tokenize_nmt(splits, tokenizer, model, NmtDataArguments(num_workers=1), 0, print)
    assert "2 of 62 train pairs were cut to the 64 tokens" in capsys.readouterr().out
    tokenize_nmt(splits, tokenizer, model, NmtDataArguments(num_workers=1, max_length_ratio=1.01), 0, print)
    lengths = [[len(tokenizer(text).input_ids) for text in pair] for pair in [*train, long, long]]
    unequal = sum(min(max(pair), 64) > 1.01 * min(min(pair), 64) for pair in lengths)
    assert 0 < unequal < 62
    assert f"{unequal} of 62 train pairs were dropped: too long or too unequal." in capsys.readouterr().out


def test_validation_pairs_are_held_out(pair_files):
    arguments = parse_nmt_arguments([*pair_files["train"], "--validation_percentage", "10"], "").data
    one, same = (load_pairs(arguments, True, print) for _ in range(2))
    assert [len(one[split]) for split in ("train", "validation")] == [180, 20]
    assert one["validation"][:] == same["validation"][:]
    # Mixed, not the last ones.
    assert one["validation"]["source"][:] != [pair[0] for pair in toy_pairs(200, 0)[-20:]]
    everything = sorted(source for split in one.values() for source in split["source"])
    assert everything == sorted(pair[0] for pair in toy_pairs(200, 0))


def test_the_checkpoint_with_the_best_bleu_is_kept(marian, pairs, tmp_path, monkeypatch):
    """Although the loss falls all the time; the patience is over after two that are worse."""
    scored = with_bleu(monkeypatch, [1.0, 9.0, 8.0, 3.0])
    options = [*QUICK, "--metric_for_best_model", "bleu", "--patience", "2", "--max_steps", "20"]
    options += as_arguments(learning_rate=2e-3, save_total_limit=9, ngram_size=2)
    (result,) = run("--model_name_or_path", marian, *pairs, "--output_dir", str(tmp_path / "run"), *options)
    evaluations = [entry for entry in result.history if "eval_loss" in entry]
    assert [entry["eval_bleu"] for entry in evaluations] == [1.0, 9.0, 8.0, 3.0]
    losses = [entry["eval_loss"] for entry in evaluations]
    assert losses == sorted(losses, reverse=True) and [entry["step"] for entry in evaluations] == [2, 4, 6, 8]
    kept, best, last = (
        load_file(tmp_path / "run" / name / "model.safetensors") for name in ("", "checkpoint-4", "checkpoint-8")
    )
    assert all(torch.equal(value, best[name]) for name, value in kept.items())
    assert not all(torch.equal(value, last[name]) for name, value in kept.items())
    # What was scored in the second evaluation, without the ensemble, the kept model says again.
    assert scored[4] == scored[1] != scored[3] and len(scored[1]) == NUM_PAIRS["validation"]
    # The second set of figures is real.
    assert evaluations[1]["eval_chrf"] == result.translations["validation"][0.0].chrf


def test_early_stopping_keeps_the_best(finished_nmt, pairs, tmp_path):
    """With a rate that destroys what was learned, by the loss."""
    options = [*QUICK, "--max_steps", "40", "--patience", "2", "--lr_scheduler_type", "constant"]
    options += ["--learning_rate", "0.1", "--lambda_grid", "0"]
    (result,) = run("--model_name_or_path", str(finished_nmt.folder), *pairs, "--output_dir", str(tmp_path), *options)
    losses = [entry["eval_loss"] for entry in result.history if "eval_loss" in entry]
    assert len(losses) == losses.index(min(losses)) + 3 < 20
    assert result.scores["validation"].nll_sums[0] / result.scores["validation"].num_tokens == pytest.approx(
        min(losses), rel=1e-4
    )


@pytest.mark.parametrize("train_mode", ["heads", "lora"])
def test_what_is_trained(marian, pairs, tmp_path, train_mode):
    folder = tmp_path / "run"
    options = ["--train_mode", train_mode, *pairs, *QUICK, "--ngram_size", "3", "--learning_rate", "1e-2"]
    run("--model_name_or_path", marian, *options, "--output_dir", str(folder))
    before, after = MarianMTModel.from_pretrained(marian), WDRNgramMarianMTModel.from_pretrained(folder)
    moved = {name for name, value in before.named_parameters() if not torch.equal(value, after.get_parameter(name))}
    if train_mode == "heads":
        assert not moved
        # A frozen backbone's loss never changes; the heads' does, and the best of them are kept.
        state = json.loads((folder / "trainer_state.json").read_text())
        losses = {entry["step"]: entry["eval_heads_loss"] for entry in state["log_history"] if "eval_loss" in entry}
        assert state["best_global_step"] == min(losses, key=losses.get) and len(set(losses.values())) == 2
    else:
        layers = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
        assert {name.split(".")[-2] for name in moved} == set(layers)
        assert all(name.endswith(".weight") for name in moved)
        assert (folder / "adapter" / "adapter_model.safetensors").exists()
    # Biases begin at zero.
    assert len(after.ngram_heads) == 2 and all(head.fc_out.bias.any() for head in after.ngram_heads)
    # The model in the folder is the one that was evaluated: merged, with its heads.
    translate = Translator(AutoTokenizer.from_pretrained(folder), 2, 1.0, 256, 64, shows_progress=False)
    rows = translations_of(folder)
    assert translate(after, [row["source"] for row in rows], 0.0) == [row["plain"] for row in rows]


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_other_plain_checkpoints(plain_checkpoints, pairs, tmp_path, name):
    """T5 with a prefix before every source, of training, evaluation and translation."""
    folder, prefix = tmp_path / "run", "translate : " if name == "t5" else ""
    options = [*pairs, *QUICK, "--max_steps", "20", "--eval_steps", "20", "--learning_rate", "1e-2"]
    options += ["--source_prefix", prefix, "--ngram_size", "3"]
    (result,) = run("--model_name_or_path", plain_checkpoints[name], *options, "--output_dir", str(folder))
    losses = [entry for entry in result.history if "next_word_loss" in entry]
    for loss in ("next_word_loss", "head_1_loss", "head_2_loss"):
        assert losses[-1][loss] < losses[0][loss] - 0.5
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert model.config.model_type == f"wdr_ngram_{name}" and model.config.ensemble_lambda == result.ensemble_lambda
    tokenizer = AutoTokenizer.from_pretrained(folder)
    longest = 64 if name == "bart" else None
    translator = Translator(tokenizer, 2, 1.0, 256, longest, prefix, shows_progress=False)
    rows = translations_of(folder)
    sources = [row["source"] for row in rows]
    assert sources == [pair[0] for pair in toy_pairs(22, 2)]
    assert translator(model, sources, result.ensemble_lambda) == [row["hypothesis"] for row in rows]
    if name == "t5":
        # Evaluation alone knows the prefix, on the run's pairs and on others, unless it is told another.
        evaluate = ["--do_train", "false", "--model_name_or_path", str(folder), *SEARCH[:4], "--lambda_grid", "0"]
        nll = pytest.approx(result.scores["test"].nll_sums[0])
        for options in ([], pairs):
            assert run(*evaluate, *options)[0].scores["test"].nll_sums[0] == nll
        assert run(*evaluate, *pairs, "--source_prefix", "")[0].scores["test"].nll_sums[0] != nll
        arguments = parse_nmt_arguments([*pairs, "--source_prefix", prefix], "").data
        batches = tokenize_nmt(load_pairs(arguments, True, print), tokenizer, model, arguments, 0, print).batches
        begin = tokenizer(prefix.strip()).input_ids[:-1]
        assert all((batch["input_ids"][:, : len(begin)] == torch.tensor(begin)).all() for batch in batches["train"])


def test_bag_of_words_without_heads(marian, pairs, tmp_path):
    options = [*pairs, *QUICK, "--ngram_target", "none", "--bow_loss_weight", "1.0"]
    (result,) = run("--model_name_or_path", marian, *options, "--output_dir", str(tmp_path / "run"))
    model = WDRNgramMarianMTModel.from_pretrained(tmp_path / "run")
    assert result.name == "bow" and not model.ngram_heads and model.config.bow_loss_weight == 1.0
    # Without heads there is no λ to look for.
    assert list(result.translations["validation"]) == [0.0] and result.ensemble_lambda == 0
    # The loss has the words of the whole sentence besides; the evaluation has only the next word.
    history = result.history
    assert all(entry["loss"] > entry["next_word_loss"] + 0.5 for entry in history if "loss" in entry)
    evaluations = [entry for entry in history if "eval_loss" in entry]
    next_word = pytest.approx([entry["eval_next_word_loss"] for entry in evaluations], rel=1e-5)
    assert [entry["eval_loss"] for entry in evaluations] == next_word
    rows = translations_of(tmp_path / "run")
    assert len(rows) == 22 and all(row["plain"] == row["hypothesis"] for row in rows)


def test_compare(pairs, tmp_path, capsys):
    folder = tmp_path / "run"
    options = [*pairs, *QUICK, "--max_steps", "2", "--num_beams", "1"]
    results = run(*options, "--output_dir", str(folder), "--compare")
    assert [result.name for result in results] == ["wdr N=3", "plain", "bow", "simple N=3"]
    assert (folder / "comparison.png").exists() and (folder / "comparison_training.png").exists()
    folders = [folder, *(folder / name for name in ("plain", "bow", "simple"))]
    assert len({(path / "tokenizer.json").read_bytes() for path in folders}) == 1
    configs = [WDRNgramMarianMTModel.from_pretrained(path).config for path in folders]
    assert [(config.ngram_size, config.bow_loss_weight) for config in configs] == [(3, 0), (1, 0), (1, 1), (3, 0)]
    assert configs[0].ngram_target == "wdr" and configs[3].ngram_target == "simple"
    # They begin with the same weights and see the same batches.
    first = [next(entry for entry in result.history if "loss" in entry) for result in results]
    assert [entry["next_word_loss"] for entry in first] == [pytest.approx(first[0]["next_word_loss"])] * 4
    assert len({entry["loss"] for entry in first}) == 4
    table = capsys.readouterr().out.split("BLEU (")[1].split("chrF (")[0]
    assert all(re.search(rf"^{name} +test +22 ", table, flags=re.MULTILINE) for name in ("plain", "bow", "simple N=3"))


def test_what_is_compared(pairs):
    """With a model of each kind, the other three, in folders of their own."""
    for kind, options in (
        ("plain", ["--ngram_target", "none"]),
        ("bow", ["--ngram_size", "1", "--bow_loss_weight", "1"]),
        ("simple", ["--ngram_target", "simple"]),
        ("wdr", []),
    ):
        arguments = parse_nmt_arguments([*pairs, *options, "--output_dir", "run", "--compare"], "")
        compared = others(arguments)
        assert arguments.model.kind == kind
        assert [other.training.output_dir for other in compared] == [
            f"run/{name}" for name in ("plain", "bow", "simple", "wdr") if name != kind
        ]
        assert [f"run/{other.model.kind}" for other in compared] == [other.training.output_dir for other in compared]
        assert all(other.data.tokenizer == "run" for other in compared)


def test_killed_and_started_again(marian, pairs, tmp_path):
    """The final weights are those of a run that was not interrupted, with dropout."""
    options = ["--model_name_or_path", marian, *pairs, *QUICK, "--ngram_size", "3", "--lambda_grid", "0", "0.4"]
    options += as_arguments(max_steps=80, eval_steps=10, learning_rate=1e-2)
    run(*options, "--output_dir", str(tmp_path / "whole"))
    broken = tmp_path / "broken"
    command = [sys.executable, str(SCRIPT), *options, "--output_dir", str(broken)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (broken / "checkpoint-20" / "trainer_state.json").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (broken / "model.safetensors").exists()
    # As if it had been killed while writing, too.
    (broken / "checkpoint-70").mkdir()
    (broken / "checkpoint-70" / "trainer_state.json").write_text('{"epoch": 1')
    run(*options, "--output_dir", str(broken))
    whole = metrics_of(tmp_path / "whole")
    assert [entry["step"] for entry in metrics_of(broken)["history"] if "eval_loss" in entry] == [*range(10, 81, 10)]
    assert metrics_of(broken)["splits"] == whole["splits"]
    weights = [load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", broken)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert WDRNgramMarianMTModel.from_pretrained(broken).config.dropout == 0.1
    assert translations_of(broken) == translations_of(tmp_path / "whole")


def test_a_runs_own_settings_run_again(marian, pairs, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    run("--model_name_or_path", marian, *pairs, "--output_dir", str(one), *QUICK, "--learning_rate", "0.03")
    # What does not change the model is not among them.
    search = ["--num_beams", "2", "--lambda_grid", "0", "0.4", "--disable_tqdm", "true"]
    run(str(one / "run.yaml"), "--output_dir", str(two), *search)
    assert (two / "run.yaml").read_text() == (one / "run.yaml").read_text()
    assert (two / "model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()
    assert translations_of(two) == translations_of(one)


def test_settings_from_a_file(pair_files, tmp_path):
    path, (_, source, _, target) = tmp_path / "settings.yaml", pair_files["train"]
    options = {"preset": "paper-small", "train_source": source, "train_target": [target], "batch_tokens": 1000}
    path.write_text(yaml.safe_dump({**options, "learning_rate": "1e-3", "reverse": True, "lambda_grid": 0.4}))
    arguments = parse_nmt_arguments([str(path), "--batch_tokens", "500"], "")
    # The command line, then the file, then the preset. One value is as good as a list of one.
    assert arguments.data.batch_tokens == 500 and arguments.data.reverse
    assert arguments.training.learning_rate == 1e-3 and arguments.report.lambda_grid == [0.4]
    assert arguments.data.train_source == [source] and arguments.data.train_target == [target]
    assert arguments.data.max_length == 175 and arguments.report.patience == 50


@pytest.mark.parametrize(
    ("preset", "inner", "heads", "dropout", "rate", "batch_tokens", "ngram_size"),
    [("paper-small", 1024, 4, 0.3, 5e-4, 4096, 3), ("paper-base", 2048, 8, 0.1, 1e-3, 25_000, 2)],
)
def test_the_papers_settings(marian, preset, inner, heads, dropout, rate, batch_tokens, ngram_size):
    arguments = parse_nmt_arguments(["--preset", preset], "")
    tokenizer = AutoTokenizer.from_pretrained(marian)
    model = build_nmt_model(arguments.model, tokenizer)
    config, training = model.config, arguments.training
    assert (config.d_model, config.dropout, config.label_smoothing, config.ngram_size) == (
        *(512, dropout, 0.1),
        ngram_size,
    )
    for side in ("encoder", "decoder"):
        sizes = [getattr(config, f"{side}_{name}") for name in ("ffn_dim", "attention_heads", "layers")]
        assert sizes == [inner, heads, 6]
    assert (training.learning_rate, training.lr_scheduler_type) == (rate, "inverse_sqrt")
    assert arguments.data.batch_tokens == batch_tokens
    # The embeddings of both sides and of the output are one.
    attention, forward, norm = 4 * (512**2 + 512), 2 * 512 * inner + 512 + inner, 2 * 512
    encoder, decoder = attention + forward + 2 * norm, 2 * attention + forward + 3 * norm
    expected = 6 * (encoder + decoder) + len(tokenizer) * 512
    heads_of_ours = sum(parameter.numel() for parameter in model.ngram_heads.parameters())
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert learned - heads_of_ours == expected
    vocabulary = arguments.model.presets[preset].subword_vocab_size
    millions = (expected + (vocabulary - len(tokenizer)) * 512) / 1e6
    assert round(millions, 1) == {"paper-small": 36.7, "paper-base": 60.5}[preset]


def test_help_names_every_option():
    command = [sys.executable, str(SCRIPT), "--help"]
    shown = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env={**os.environ, "COLUMNS": "200"}
    )
    assert shown.returncode == 0 and shown.stderr == ""
    for group in (NmtDataArguments, NmtModelArguments, NmtReportArguments, NmtTrainingArguments):
        for option in fields(group):
            assert f"--{option.name}" in shown.stdout
    assert "python train_nmt.py --compare" in shown.stdout
    for name in ("tiny", "paper-small", "paper-base"):
        assert f"`{name}`: " in shown.stdout


def test_without_an_argument(tmp_path, monkeypatch):
    """The sentences of the grammar, a small model, a folder for it."""
    monkeypatch.chdir(tmp_path)
    arguments = parse_nmt_arguments([], "")
    assert arguments.model.preset == "tiny" and arguments.training.output_dir == "runs/nmt"
    assert arguments.training.do_train and arguments.model.kind == "wdr" and not arguments.data.is_given()
    told = []
    splits = load_pairs(arguments.data, True, told.append)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 12_000, "validation": 300, "test": 500}
    assert not told
    reverse = load_pairs(parse_nmt_arguments(["--reverse"], "").data, True, told.append)
    assert reverse["test"]["source"][:] == splits["test"]["target"][:]
    english = {word for sentence in splits["test"]["source"] for word in sentence.lower().split()}
    german = {word for sentence in splits["test"]["target"] for word in sentence.lower().split()}
    assert {"the", "a", "is"} <= english and {"der", "die", "das", "ein", "ist"} <= german
    assert not {"the", "is"} & german and not list(tmp_path.iterdir())


def test_the_embedded_default_runs(tmp_path, monkeypatch, capsys):
    """A few pairs of the grammar, a tokenizer trained on them, the preset's model."""
    from ngram_wdr_hf.data.grammar import english_german

    monkeypatch.setattr(
        ngram_wdr_hf.training.nmt.data,
        "english_german",
        lambda: english_german({"train": 100, "validation": 6, "test": 5}),
    )
    monkeypatch.chdir(tmp_path)
    short = as_arguments(max_steps=2, eval_strategy="no", vocab_size=600, lambda_grid="0 0.4", num_beams=1)
    (result,) = run(*short, "--num_workers", "1", "--disable_tqdm", "true")
    assert result.name == "wdr N=3" and result.settings["preset"] == "tiny" and len(result.translated) == 5
    printed = capsys.readouterr().out
    assert "BLEU (" in printed and "Saved in runs/nmt: " in printed
    assert RunFolder("runs/nmt").is_trained() and len(AutoTokenizer.from_pretrained("runs/nmt")) == 600
