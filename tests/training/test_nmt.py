"""`train_nmt.py`: its pairs, its runs from the arguments to the files, and what a trained model does."""

import re
import shutil
from functools import partial

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from ngram_wdr_hf import WDRNgramMarianMTModel
from ngram_wdr_hf.metrics import TRANSLATION
from ngram_wdr_hf.training import nmt
from ngram_wdr_hf.training.new_models import make_model
from ngram_wdr_hf.training.presets import NMT_PRESETS
from ngram_wdr_hf.training.translator import Translator
from tests.support import scripts
from tests.support.scripts import (
    EVALUATE,
    NUM_PAIRS,
    as_arguments,
    card_code,
    metrics_of,
    save_plain_seq2seq,
    toy_pairs,
    translations_of,
    weights_of,
)

QUICK = scripts.QUICK["nmt"]
run, parsed = partial(scripts.run, "nmt"), partial(scripts.parsed, "nmt")
# Options to repeat for evaluation only, because they are no training settings.
SEARCH = as_arguments(num_beams=2, disable_tqdm="true")


def test_run_and_its_files(finished):
    _, folder, result, printed = finished("nmt")
    metrics, rows = metrics_of(folder), translations_of(folder)
    validation, test = metrics["splits"]["validation"], metrics["splits"]["test"]
    assert metrics["model"] == "wdr N=3" and metrics["settings"]["learning_rate"] == 1e-2
    assert validation["lambda"] == validation["perplexity_lambda"] == [0.0, 0.2, 0.4, 0.6]
    # Fitted to the NLL: on the validation set, no other ensemble has a lower perplexity.
    perplexities = validation["ensemble_perplexity"]
    assert min([*perplexities.values(), *validation["token_perplexity"]]) == perplexities["fitted"]
    assert perplexities["temperature"] < perplexities["without heads"]
    for split, count in ((validation, 24), (test, 22)):
        assert (split["num_sentences"], split["num_beams"], split["length_penalty"]) == (count, 2, 1)
        # An untrained model's perplexity would be about 350.
        assert 1 < min(split["token_perplexity"]) < 20 and split["next_word_loss"] < 4 and split["head_2_loss"] < 4
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert test["num_tokens"] == sum(len(tokenizer(pair[1]).input_ids) for pair in toy_pairs(22, 2))
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
    assert all(test["bleu_signature"] in text for text in (printed, card))


def test_the_saved_model_translates_as_it_was_evaluated(finished, capsys):
    _, folder, result, _ = finished("nmt")
    rows = translations_of(folder)
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert model.ngram_ensemble() == result.ensemble and tokenizer.model_max_length == 64
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 64)

    def generated(**options) -> list[str]:
        ids = [model.generate(**tokenizer(row["source"], return_tensors="pt"), **options)[0] for row in rows]
        return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]

    assert generated() == [row["hypothesis"] for row in rows] != generated(num_beams=1)
    assert generated(ensemble_lambda=0.0) == [row["plain"] for row in rows]
    exec(card_code(folder), {})
    (hypothesis,) = {row["hypothesis"] for row in rows if repr(row["source"]) in card_code(folder)}
    assert hypothesis in capsys.readouterr().out


def test_batches_hold_all_beams_and_are_sorted_by_length(finished, monkeypatch):
    folder, texts, shapes = finished("nmt").folder, [source for source, _ in toy_pairs(20, 3)], []
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def generate(input_ids, attention_mask, max_new_tokens, **options):
        assert torch.equal(attention_mask, (input_ids != tokenizer.pad_token_id).long())
        assert max_new_tokens == min(2 * input_ids.shape[1] + 10, model.config.max_position_embeddings - 1)
        shapes.append(input_ids.shape)
        return input_ids

    monkeypatch.setattr(model, "generate", generate)
    # A model that copies its input shows that no sentence is lost.
    assert Translator(tokenizer, batch_tokens=80)(model, ["", *texts, None], 0.4) == ["", *texts, ""]
    lengths = [length for _, length in shapes]
    assert lengths == sorted(lengths) and all(2 * rows * length <= 80 for rows, length in shapes) and len(shapes) > 3
    # The model's maximum length limits sources and translations. The prefix is a part of the source.
    model.config.max_position_embeddings = 4
    copied = Translator(tokenizer, prefix="today today ")(model, texts, 0.4)
    assert all(text.startswith("today") for text in copied) and shapes[-1] == (20, 4)


def test_finished_run_with_other_beams(finished, pair_files, tmp_path):
    """It is not trained again, and is saved with the search that its results come from."""
    command, folder, result, _ = finished("nmt")
    again = shutil.copytree(folder, tmp_path / "run")
    repeated = run(*command, "--num_beams", "1", "--length_penalty", "0.6", "--output_dir", again)
    assert repeated.history == result.history and weights_of(again) == weights_of(folder)
    assert metrics_of(again)["splits"]["test"]["num_beams"] == 1
    search = WDRNgramMarianMTModel.from_pretrained(again).generation_config
    assert search.num_beams == 1 and search.length_penalty is None
    # Evaluated without a validation set, the ensemble is that of the model.
    test = run(*EVALUATE, folder, *SEARCH, *pair_files["test"], "--output_dir", tmp_path / "tables")
    assert list(test.splits) == ["test"] and test.ensemble == result.ensemble and test.samples == result.samples


def test_sources_without_references(marian, pair_files, tmp_path):
    """They are translated, but not scored."""
    options = [*pair_files["train"], *pair_files["validation"], *pair_files["test"][:2], *QUICK]
    result = run("--model_name_or_path", marian, *options, "--max_steps", "1", "--output_dir", tmp_path)
    rows = translations_of(tmp_path)
    assert list(result.splits) == ["validation"] and [row["source"] for row in rows] == [
        a for a, _ in toy_pairs(22, 2)
    ]
    assert all(row["reference"] is None and row["plain"] for row in rows)


def test_translate(finished, tmp_path, capsys):
    """One translation per line; an empty line stays empty. Nothing else is on standard output."""
    folder = finished("nmt").folder
    rows = translations_of(folder)
    lines, expected = ([row[side] for row in rows] for side in ("source", "hypothesis"))
    for place in (7, 0):
        lines.insert(place, "")
        expected.insert(place, "")
    lines[0] = "  \t"
    # The last line may lack a line break; Windows line breaks are accepted.
    for text in ("\n".join([*lines, ""]), "\ufeff" + "\r\n".join(lines)):
        (tmp_path / "text.en").write_bytes(text.encode())
        assert run(*EVALUATE, folder, *SEARCH, "--translate", tmp_path / "text.en") is None
        assert capsys.readouterr().out == "\n".join(expected) + "\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text.en"]


def test_checkpoint_with_the_best_bleu_is_kept(marian, pairs, tmp_path, monkeypatch):
    """The loss always falls; early stopping follows two evaluations with a lower BLEU."""
    scored, figures, load = [], [1.0, 9.0, 8.0, 3.0], nmt.evaluate.load

    class Changed:
        def compute(self, predictions, references):
            scored.append(list(predictions))
            scores = load(TRANSLATION).compute(predictions=predictions, references=references)
            return {**scores, "bleu": figures[len(scored) - 1] if len(scored) <= len(figures) else 0.0}

    monkeypatch.setattr(nmt.evaluate, "load", lambda *args, **kwargs: Changed())
    options = [*QUICK, "--metric_for_best_model", "bleu", "--patience", "2", "--max_steps", "20"]
    options += as_arguments(learning_rate=2e-3, save_total_limit=9, ngram_size=2)
    result = run("--model_name_or_path", marian, *pairs, "--output_dir", tmp_path, *options)
    evaluations = [entry for entry in result.history if "eval_loss" in entry]
    assert [entry["eval_bleu"] for entry in evaluations] == figures
    losses = [entry["eval_loss"] for entry in evaluations]
    assert losses == sorted(losses, reverse=True) and [entry["step"] for entry in evaluations] == [2, 4, 6, 8]
    kept, best, last = (weights_of(tmp_path / name) for name in ("", "checkpoint-4", "checkpoint-8"))
    assert kept == best != last
    # The kept model reproduces the translations of the second evaluation, without the ensemble.
    assert scored[4] == scored[1] != scored[3] and len(scored[1]) == NUM_PAIRS["validation"]


@pytest.mark.parametrize(("name", "train_mode"), [("bart", "heads"), ("t5", "full")])
def test_plain_checkpoints(pairs, tmp_path, name, train_mode):
    """T5 gets a prefix before every source in training, evaluation and translation."""
    plain = save_plain_seq2seq(name, tmp_path / "plain")
    folder, prefix = tmp_path / "run", "translate : " if name == "t5" else ""
    options = [*pairs, *QUICK, "--train_mode", train_mode, "--source_prefix", prefix, "--learning_rate", "1e-2"]
    options += as_arguments(ngram_size=3, max_steps=20, eval_steps=10)
    result = run("--model_name_or_path", plain, *options, "--output_dir", folder)
    losses = [entry for entry in result.history if "next_word_loss" in entry]
    assert all(losses[-1][f"head_{n}_loss"] < losses[0][f"head_{n}_loss"] - 0.5 for n in (1, 2))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    before = AutoModelForSeq2SeqLM.from_pretrained(plain).named_parameters()
    is_same = [torch.equal(value, model.get_parameter(key)) for key, value in before]
    assert all(is_same) if train_mode == "heads" else not any(is_same)
    rows, translate = translations_of(folder), Translator(tokenizer, 256, prefix, shows_progress=False)
    assert translate(model, [row["source"] for row in rows], 0.0) == [row["plain"] for row in rows]
    if name == "t5":
        # Evaluation uses the run's prefix on any pairs, unless another is given.
        evaluate = [*EVALUATE, folder, *pairs, "--num_beams", "1", "--lambda_grid", "0"]
        expected = pytest.approx(result.splits["test"]["token_perplexity"][0])
        for more, has_prefix in (([], True), (["--source_prefix", ""], False)):
            assert (run(*evaluate, *more).splits["test"]["token_perplexity"][0] == expected) is has_prefix


@pytest.mark.parametrize(("preset", "millions"), [("paper-small", 36.7), ("paper-base", 60.5)])
def test_the_papers_sizes(marian, preset, millions):
    tokenizer = AutoTokenizer.from_pretrained(marian)
    model = make_model(parsed("--preset", preset, "--ngram_target", "none")[1], "seq2seq", tokenizer)
    # Encoder, decoder and output share one embedding.
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    others = (NMT_PRESETS[preset].subword_vocab_size - len(tokenizer)) * model.config.d_model
    assert round((learned + others) / 1e6, 1) == millions
