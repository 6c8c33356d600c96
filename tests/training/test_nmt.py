"""`train_nmt.py`: its pairs, its runs from the arguments to the files, and what a trained model does."""

import io
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from ngram_wdr_hf import WDRNgramMarianMTModel
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.data.tokenizers import train_bpe_tokenizer
from ngram_wdr_hf.training import nmt, pair_data
from ngram_wdr_hf.training.new_models import make_model
from ngram_wdr_hf.training.options import RunTrainingArguments
from ngram_wdr_hf.training.parsing import parse
from ngram_wdr_hf.training.presets import NMT_PRESETS
from ngram_wdr_hf.training.translator import Translator
from tests.support import nmt_runs
from tests.support.errors import raises_naming
from tests.support.nmt_runs import NUM_PAIRS, QUICK, SEARCH, run, toy_pairs, translations_of
from tests.support.processes import in_two_processes, killed_and_resumed, run_python
from tests.support.scripts import as_arguments, card_code, contents, metrics_of, weights_of
from tests.support.tiny import plain_seq2seq

NO_TRAINING = ["--do_train", "false", "--model_name_or_path"]


def parsed(*arguments: str):
    classes = (nmt.PairOptions, nmt.NmtModelOptions, RunTrainingArguments)
    return parse(classes, [*arguments, "--report_to", "none"], "nmt", "", {"output_dir": "run"})


def test_pairs_of_json_lines(tmp_path):
    """Without validation pairs, a part is held out."""
    for split, count in (("train", 200), ("test", 22)):
        nmt_runs.write_json(tmp_path, split, toy_pairs(count, seed=0))
    data = as_arguments(dataset_name=tmp_path, source_lang="de", target_lang="en", validation_percentage=10)
    options, _, training = parsed(*data)
    splits = nmt.load_pairs(options, training)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 180, "validation": 20, "test": 22}
    assert [*zip(splits["test"]["target"], splits["test"]["source"], strict=True)] == toy_pairs(22, seed=0)


def test_pairs_that_are_too_long(marian, tmp_path):
    """Such pairs are dropped from the training set, or truncated, and counted."""
    train, short, long = toy_pairs(60, 0), toy_pairs(10, 1), ("the cat sees the mouse . " * 9, "die Katze . " * 30)
    files = nmt_runs.write_sides(tmp_path, "train", [*train, long, long])
    files += nmt_runs.write_sides(tmp_path, "validation", short)
    files += nmt_runs.write_sides(tmp_path, "test", [*short, ("", ""), long])
    options, model_options, training = parsed(*files, "--model_name_or_path", marian, "--num_workers", "1")
    tokenizer = AutoTokenizer.from_pretrained(marian)
    model, splits = make_model(model_options, "seq2seq", tokenizer), nmt.load_pairs(options, training)
    lengths = [[len(tokenizer(text).input_ids) for text in pair] for pair in [*train, long, long]]
    unequal = sum(min(max(pair), 64) > 1.01 * min(min(pair), 64) for pair in lengths)
    assert 2 < unequal < 62 and max(map(max, lengths)) > 64
    for limits, kept, truncated in (((None, None), 62, 2), ((20, None), 60, 0), ((None, 1.01), 62 - unequal, 0)):
        options.max_length, options.max_length_ratio = limits
        batches = nmt.tokenize_splits(splits, tokenizer, model, options, 0)
        assert re.fullmatch(rf"{kept} in \d+ batches, {truncated} truncated", str(batches["train"]))
        assert sum(len(batch["labels"]) for batch in batches["train"]) == kept
    # Only the first 64 tokens of a longer reference are scored.
    expected = sum(len(tokenizer(pair[1]).input_ids) for pair in short) + 64
    assert sum(int((batch["labels"] != -100).sum()) for batch in batches["test"]) == expected


def test_run_and_its_files(finished_nmt):
    folder, printed, result = finished_nmt.folder, finished_nmt.printed, finished_nmt.result
    metrics, rows = metrics_of(folder), translations_of(folder)
    validation, test = metrics["splits"]["validation"], metrics["splits"]["test"]
    assert metrics["model"] == "wdr N=3" and metrics["settings"]["learning_rate"] == 1e-2
    assert validation["lambda"] == validation["perplexity_lambda"] == [0.0, 0.2, 0.4, 0.6]
    assert [*validation["ensembles"]] == [*test["ensembles"]] == ["without heads", "temperature", "best λ", "fitted"]
    # Fitted to the NLL: on the validation set, no other ensemble has a lower perplexity.
    perplexities = validation["ensemble_perplexity"]
    assert min([*perplexities.values(), *validation["token_perplexity"]]) == perplexities["fitted"]
    assert perplexities["temperature"] < perplexities["without heads"]
    for split, count in ((validation, 24), (test, 22)):
        assert split["num_sentences"] == count and split["num_beams"] == 2 and split["length_penalty"] == 1
        assert split["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
        # An untrained model's perplexity would be about 350.
        assert 1 < min(split["token_perplexity"]) < 20 and split["next_word_loss"] < 4 and split["head_2_loss"] < 4
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert test["num_tokens"] == sum(len(tokenizer(pair[1]).input_ids) for pair in toy_pairs(22, 2))
    evaluations = [entry for entry in metrics["history"] if "eval_perplexity" in entry]
    best = min(evaluations, key=lambda entry: entry["eval_fitted_perplexity"])
    assert validation["token_perplexity"][0] == pytest.approx(best["eval_perplexity"], rel=1e-5)

    # The scores, recomputed from the run's files.
    assert [(row["source"], row["reference"]) for row in rows] == toy_pairs(22, seed=2)
    chosen = dict(zip(test["ensembles"], [0.0, result.fit.temperature, None, result.fit.ensemble], strict=True))
    bleu = dict(zip(validation["lambda"], validation["bleu"], strict=True))
    chosen["best λ"] = max(bleu, key=bleu.get)
    heading = next(name for name, ensemble in chosen.items() if ensemble == result.ensemble)
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        for side, ensemble in (("plain", "without heads"), ("hypothesis", heading)):
            expected = metric.corpus_score([row[side] for row in rows], [[row["reference"] for row in rows]]).score
            assert test["ensembles"][ensemble][name] == pytest.approx(expected, abs=1e-9) and expected > 1
    # The ensemble with the best BLEU on the validation set is chosen.
    figures = {**{name: scores["bleu"] for name, scores in validation["ensembles"].items()}, **bleu}
    assert figures[heading] == max(figures.values()) and len(set(figures.values())) > 1

    card = (folder / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"wdr N=3 +test +22 .* {test['ensembles'][heading]['bleu']:.2f}[^*]*\*", printed)
    assert all(split["bleu_signature"] in text for split in (validation, test) for text in (printed, card))
    assert "pipeline_tag: translation" in card and (folder / "lambda_sweep.png").exists()
    examples = re.findall(r"source +(.+)\n +reference +(.+)\n +plain +(.+)", card)
    assert len(examples) == 5 and {*examples} <= {(row["source"], row["reference"], row["plain"]) for row in rows}


def test_the_saved_model_translates_as_it_was_evaluated(finished_nmt, capsys):
    folder, rows = finished_nmt.folder, translations_of(finished_nmt.folder)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert model.ngram_ensemble() == finished_nmt.result.ensemble and tokenizer.model_max_length == 64
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 64)

    def generated(**options) -> list[str]:
        ids = [model.generate(**tokenizer(row["source"], return_tensors="pt"), **options)[0] for row in rows]
        return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]

    assert generated() == [row["hypothesis"] for row in rows] != generated(num_beams=1)
    assert generated(ensemble_lambda=0.0) == [row["plain"] for row in rows]
    exec(card_code(folder), {})
    (hypothesis,) = {row["hypothesis"] for row in rows if repr(row["source"]) in card_code(folder)}
    assert hypothesis in capsys.readouterr().out


def test_evaluation_of_a_finished_run(finished_nmt, pair_files, tmp_path, monkeypatch):
    """Without data options, the run's own data is used; only the tables are written."""
    monkeypatch.chdir(tmp_path)
    before, expected = contents(finished_nmt.folder), metrics_of(finished_nmt.folder)["splits"]
    arguments = [*NO_TRAINING, str(finished_nmt.folder), *SEARCH, "--output_dir", "tables"]
    result = run(*arguments)
    assert result.ensemble == finished_nmt.result.ensemble and result.samples == finished_nmt.result.samples
    for name in ("lambda", "bleu", "chrf", "perplexity_lambda", "token_perplexity", "num_tokens"):
        assert result.splits["validation"][name] == pytest.approx(expected["validation"][name])
    for name in ("bleu", "token_perplexity"):
        assert result.splits["test"][name][0] == pytest.approx(expected["test"][name][0])
    # Without a validation set, the ensemble is that of the model.
    test = run(*arguments, *pair_files["test"])
    assert list(test.splits) == ["test"] and test.ensemble == finished_nmt.result.ensemble
    assert test.samples == finished_nmt.result.samples
    assert contents(finished_nmt.folder) == before
    assert {path.name for path in contents(tmp_path)} == {"evaluation.md", "evaluation.json"}


def test_finished_run_with_other_beams(finished_nmt, tmp_path):
    """It is not trained again, and is saved with the search that its results come from."""
    folder = shutil.copytree(finished_nmt.folder, tmp_path / "run")
    options = ["--num_beams", "1", "--length_penalty", "0.6", "--output_dir", str(folder)]
    result = run(*finished_nmt.command, *options)
    assert result.history == finished_nmt.result.history and weights_of(folder) == weights_of(finished_nmt.folder)
    assert metrics_of(folder)["splits"]["test"]["num_beams"] == 1
    search = WDRNgramMarianMTModel.from_pretrained(folder).generation_config
    assert search.num_beams == 1 and search.length_penalty is None


def test_translate(finished_nmt, tmp_path, capsys):
    """One translation per line, in UTF-8; an empty line stays empty. Nothing else is on standard output."""
    rows = translations_of(finished_nmt.folder)
    lines, expected = ([row[side] for row in rows] for side in ("source", "hypothesis"))
    for place in (len(lines), 7, 0):
        lines.insert(place, "")
        expected.insert(place, "")
    lines[0] = "  \t"
    (tmp_path / "text.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = [*NO_TRAINING, str(finished_nmt.folder), *SEARCH, "--translate", str(tmp_path / "text.en")]
    printed = run_python(str(nmt_runs.SCRIPT), *arguments, is_warm=True, PYTHONIOENCODING="ascii")
    assert printed == "\n".join(expected) + "\n" and not printed.isascii()
    # The last line may lack a line break; Windows line breaks are accepted.
    (tmp_path / "text.en").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines[1:8]).encode())
    assert run(*arguments) is None
    assert capsys.readouterr().out == "\n".join(expected[1:8]) + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text.en"]


def test_smallest_of_equally_good_lambdas_is_chosen(marian, pair_files, tmp_path, monkeypatch):
    """The test set has no references: it is translated, but not scored."""
    nmt_runs.with_bleu(monkeypatch, [1.0, 5.0, 5.0, 2.0])
    options = [*pair_files["train"], *pair_files["validation"], *pair_files["test"][:2], *QUICK, "--num_examples", "2"]
    options += as_arguments(lambda_grid="0.6 0.4 0.2", eval_strategy="no", ensemble="lambda")
    result = run("--model_name_or_path", marian, *options, "--output_dir", str(tmp_path / "run"))
    assert list(result.splits) == ["validation"] and result.splits["validation"]["lambda"] == [0.0, 0.2, 0.4, 0.6]
    assert result.ensemble == WDRNgramMarianMTModel.from_pretrained(tmp_path / "run").config.ensemble_lambda == 0.2
    rows, card = translations_of(tmp_path / "run"), (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert [row["source"] for row in rows] == [pair[0] for pair in toy_pairs(22, 2)]
    assert all(row["reference"] is None and row["plain"] for row in rows)
    assert card.count("\n    source ") == 2 and "reference" not in card.split("## Sample")[1]


def test_checkpoint_with_the_best_bleu_is_kept(marian, pairs, tmp_path, monkeypatch):
    """The loss always falls; early stopping follows two evaluations with a lower BLEU."""
    scored = nmt_runs.with_bleu(monkeypatch, [1.0, 9.0, 8.0, 3.0])
    options = [*QUICK, "--metric_for_best_model", "bleu", "--patience", "2", "--max_steps", "20"]
    options += as_arguments(learning_rate=2e-3, save_total_limit=9, ngram_size=2)
    result = run("--model_name_or_path", marian, *pairs, "--output_dir", str(tmp_path / "run"), *options)
    evaluations = [entry for entry in result.history if "eval_loss" in entry]
    assert [entry["eval_bleu"] for entry in evaluations] == [1.0, 9.0, 8.0, 3.0]
    losses = [entry["eval_loss"] for entry in evaluations]
    assert losses == sorted(losses, reverse=True) and [entry["step"] for entry in evaluations] == [2, 4, 6, 8]
    kept, best, last = (weights_of(tmp_path / "run" / name) for name in ("", "checkpoint-4", "checkpoint-8"))
    assert kept == best != last
    # The kept model reproduces the translations of the second evaluation, without the ensemble.
    assert scored[4] == scored[1] != scored[3] and len(scored[1]) == NUM_PAIRS["validation"]
    assert evaluations[1]["eval_chrf"] == result.splits["validation"]["chrf"][0]


@pytest.mark.parametrize(("name", "train_mode"), [("bart", "heads"), ("t5", "full")])
def test_plain_checkpoints(plain_checkpoints, pairs, tmp_path, name, train_mode):
    """T5 gets a prefix before every source in training, evaluation and translation."""
    folder, prefix = tmp_path / "run", "translate : " if name == "t5" else ""
    options = [*pairs, *QUICK, "--train_mode", train_mode, "--source_prefix", prefix, "--learning_rate", "1e-2"]
    options += as_arguments(ngram_size=3, max_steps=20, eval_steps=10)
    result = run("--model_name_or_path", plain_checkpoints[name], *options, "--output_dir", str(folder))
    losses = [entry for entry in result.history if "next_word_loss" in entry]
    assert all(losses[-1][f"head_{n}_loss"] < losses[0][f"head_{n}_loss"] - 0.5 for n in (1, 2))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == f"wdr_ngram_{name}" and model.ngram_ensemble() == result.ensemble
    before = AutoModelForSeq2SeqLM.from_pretrained(plain_checkpoints[name]).named_parameters()
    is_same = [torch.equal(value, model.get_parameter(key)) for key, value in before]
    assert all(is_same) if train_mode == "heads" else not any(is_same)
    rows, translate = translations_of(folder), Translator(tokenizer, 256, prefix, shows_progress=False)
    assert translate(model, [row["source"] for row in rows], 0.0) == [row["plain"] for row in rows]
    if name == "t5":
        # Evaluation uses the run's prefix on any pairs, unless another is given.
        evaluate = [*NO_TRAINING, str(folder), "--num_beams", "1", "--lambda_grid", "0"]
        expected = pytest.approx(result.splits["test"]["token_perplexity"][0])
        for more, has_prefix in (([], True), (pairs, True), ([*pairs, "--source_prefix", ""], False)):
            assert (run(*evaluate, *more).splits["test"]["token_perplexity"][0] == expected) is has_prefix


@pytest.mark.plots
def test_compare_without_data(tmp_path, monkeypatch):
    """All kinds of model start from the same weights and train on the same batches of built-in pairs."""
    sizes, generate = {"train": 100, "validation": 6, "test": 5}, pair_data.english_german
    monkeypatch.setattr(pair_data, "english_german", lambda: generate(sizes))
    monkeypatch.chdir(tmp_path)
    options = as_arguments(max_steps=2, eval_strategy="steps", eval_steps=2, logging_steps=1, vocab_size=600)
    options += as_arguments(num_beams=1, num_workers=1, lambda_grid="0 0.4", batch_tokens=256, disable_tqdm="true")
    with redirect_stdout(io.StringIO()) as printed:
        run(*options, "--compare")
    folder = Path("runs/nmt")
    assert (folder / "comparison.png").exists() and (folder / "comparison_training.png").exists()
    folders = [folder, *(folder / name for name in ("plain", "bow", "simple"))]
    assert len({(path / "tokenizer.json").read_bytes() for path in folders}) == 1
    configs = [WDRNgramMarianMTModel.from_pretrained(path).config for path in folders]
    assert [(config.ngram_size, config.bow_loss_weight) for config in configs] == [(3, 0), (1, 0), (1, 1), (3, 0)]
    assert [config.ngram_target for config in configs[::3]] == ["wdr", "simple"] and configs[0].vocab_size == 600
    metrics = [metrics_of(path) for path in folders]
    assert [each["model"] for each in metrics] == ["wdr N=3", "plain", "bow", "simple N=3"]
    first = [next(entry for entry in each["history"] if "loss" in entry) for each in metrics]
    assert [entry["next_word_loss"] for entry in first] == [pytest.approx(first[0]["next_word_loss"])] * 4
    assert len({entry["loss"] for entry in first}) == 4
    table = printed.getvalue().rpartition("SacreBLEU (")[2].partition("chrF (")[0]
    assert re.findall(r"^(\S.*?)  +test +5 ", table, flags=re.MULTILINE) == ["wdr N=3", "plain", "bow", "simple N=3"]
    # The loss of the bag of words is part of the training loss only; without heads, only λ = 0 is evaluated.
    bow = metrics[2]
    assert first[2]["loss"] == pytest.approx(first[1]["loss"] + first[2]["bow_loss"]) and first[2]["bow_loss"] > 0.1
    evaluation = next(entry for entry in bow["history"] if "eval_loss" in entry)
    assert evaluation["eval_loss"] == pytest.approx(evaluation["eval_next_word_loss"], rel=1e-5)
    assert bow["splits"]["validation"]["lambda"] == [0.0]
    assert all(row["plain"] == row["hypothesis"] for row in translations_of(folder / "bow"))


def test_killed_and_resumed(marian, pairs, tmp_path):
    """The final weights are those of an uninterrupted run, with dropout."""
    options = ["--model_name_or_path", marian, *pairs, *QUICK, "--ngram_size", "3", "--lambda_grid", "0", "0.4"]
    options += as_arguments(max_steps=40, eval_steps=10, learning_rate=1e-2)
    complete, broken = killed_and_resumed(run, tmp_path, options)
    assert [entry["step"] for entry in metrics_of(broken)["history"] if "eval_loss" in entry] == [10, 20, 30, 40]
    assert metrics_of(broken)["splits"] == metrics_of(complete)["splits"]
    assert translations_of(broken) == translations_of(complete)
    assert WDRNgramMarianMTModel.from_pretrained(broken).config.dropout == 0.1


def run_in_one_of_two(rank: int, folder: Path, arguments: list[str]) -> None:
    with open(folder / f"printed_{rank}", "w", encoding="utf-8") as printed, redirect_stdout(printed):
        run(*arguments)


def test_two_processes_equal_gradient_accumulation(marian, pairs, tmp_path):
    """Without dropout, because each process has its own random state. In evaluation, one process has no batch."""
    tokenizer, plain = AutoTokenizer.from_pretrained(marian), tmp_path / "plain"
    tokenizer.save_pretrained(plain)
    sizes = {**nmt_runs.SIZES, "dropout": 0.0}
    plain_seq2seq("marian", vocab_size=len(tokenizer), **sizes).save_pretrained(plain)
    options = ["--model_name_or_path", str(plain), *pairs, *QUICK, "--lr_scheduler_type", "constant"]
    # Some gradients are zero up to rounding, which Adam would scale to full steps. BLEU is computed by both processes.
    options += as_arguments(max_steps=40, eval_steps=10, batch_tokens=240, ngram_size=3, learning_rate=1e-2)
    options += as_arguments(adam_epsilon=1e-5, metric_for_best_model="bleu")
    one, two = tmp_path / "one", tmp_path / "two"
    run(*options, "--output_dir", str(one), "--gradient_accumulation_steps", "2")
    in_two_processes(run_in_one_of_two, tmp_path, [*options, "--output_dir", str(two)])
    # Messages are printed once.
    output = "".join((tmp_path / f"printed_{rank}").read_text(encoding="utf-8") for rank in range(2))
    batches = re.findall(r"in (\d+) batches", output)
    assert int(batches[0]) % 2 == 0 and batches[1:] == ["1", "1"]
    metrics, expected = metrics_of(two), metrics_of(one)
    names = [f"{prefix}{name}_loss" for prefix in ("", "eval_") for name in ("next_word", "head_1", "head_2")]
    for name in [*names, "loss", "eval_loss", "eval_perplexity", "eval_fitted_perplexity", "eval_bleu"]:
        curve, other = ([entry[name] for entry in log["history"] if name in entry] for log in (metrics, expected))
        assert curve == pytest.approx(other, abs=1e-4, rel=1e-5) and len(curve) == (4 if "eval" in name else 40)
        assert name not in names[:3] or curve[-1] < curve[0] - 1
        assert name != "eval_bleu" or len(set(curve)) > 1
    for split, figures in metrics["splits"].items():
        for name, other in expected["splits"][split].items():
            if name == "ensembles":
                assert figures[name] == {heading: pytest.approx(value, rel=1e-4) for heading, value in other.items()}
            elif isinstance(other, str) or name in ("bleu", "chrf"):
                assert figures[name] == other
            else:
                assert figures[name] == pytest.approx(other, rel=1e-4 if isinstance(other, dict) else 1e-5)
    rows = translations_of(two)
    assert rows == translations_of(one) and len(rows) == 22 and len({row["hypothesis"] for row in rows}) > 1
    model, expected_model = (AutoModelForSeq2SeqLM.from_pretrained(path) for path in (two, one))
    torch.testing.assert_close(model.state_dict(), expected_model.state_dict(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("preset", "millions"), [("paper-small", 36.7), ("paper-base", 60.5)])
def test_the_papers_sizes(marian, preset, millions):
    tokenizer = AutoTokenizer.from_pretrained(marian)
    model = make_model(parsed("--preset", preset, "--ngram_target", "none")[1], "seq2seq", tokenizer)
    # Encoder, decoder and output share one embedding.
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    others = (NMT_PRESETS[preset].subword_vocab_size - len(tokenizer)) * model.config.d_model
    assert round((learned + others) / 1e6, 1) == millions


BAD_OPTIONS = {
    "TRAIN --per_device_train_batch_size 8": "`--batch_tokens`",
    "TRAIN --max_length 2": "`--max_length`",
    "TRAIN --validation_source SOURCE": "`--validation_target`",
    "TRAIN --dataset_name wmt14": "`--dataset_name`",
    "--test_source SOURCE": "`--train_source`",
    "TRAIN --tokenizer no_padding": "`--tokenizer no_padding`",
    "TRAIN --use_mtp": "`--num_beams 1`",
    "--translate text.en": "`--do_train false",
    "TRAIN --metric_for_best_model bleu": "`--metric_for_best_model bleu`",
    "TRAIN --train_mode heads --model_name_or_path MODEL --metric_for_best_model chrf": "`--train_mode heads`",
    "--do_train false --model_name_or_path MODEL --tokenizer bpe --test_source SOURCE": "`--tokenizer bpe`",
}


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_bad_options(marian, pair_files, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    train_bpe_tokenizer(["the cat"], 300).save_pretrained("no_padding")
    if "bleu" in options:
        # A sharded model cannot translate.
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    words = {"TRAIN": pair_files["train"], "SOURCE": pair_files["train"][1:2], "MODEL": [marian]}
    with raises_naming(InputError, BAD_OPTIONS[options]):
        run(*QUICK, *(part for word in options.split() for part in words.get(word, [word])))
