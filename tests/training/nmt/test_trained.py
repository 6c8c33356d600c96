"""What a trained translation model does: as it was evaluated, evaluated again, and for new text."""

import re
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tests.support.nmt_runs import SEARCH, run, translations_of
from tests.support.scripts import card_code, contents


def generate(folder: Path, sources: list[str], **options) -> list[str]:
    """Translate one sentence at a time with the saved model and its saved settings."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [model.generate(**tokenizer(source, return_tensors="pt"), **options)[0] for source in sources]
    return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]


def test_the_saved_model_translates_as_it_was_evaluated(finished_nmt):
    folder = finished_nmt.folder
    rows = translations_of(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.ngram_ensemble() == finished_nmt.result.ensemble
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 64)
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 64
    sources = [row["source"] for row in rows]
    assert generate(folder, sources) == [row["hypothesis"] for row in rows]
    assert generate(folder, sources, ensemble_lambda=0.0) == [row["plain"] for row in rows]
    # The number of beams has an effect.
    assert generate(folder, sources, num_beams=1) != [row["hypothesis"] for row in rows]


def test_model_card_code_translates(finished_nmt, capsys):
    exec(card_code(finished_nmt.folder), {})
    assert finished_nmt.result.examples()[0].hypothesis in capsys.readouterr().out


def test_evaluation_only(finished_nmt, pair_files, tmp_path, monkeypatch, capsys):
    """Without data options, the run's own data is used; only the tables are written."""
    monkeypatch.chdir(tmp_path)
    before = contents(finished_nmt.folder)
    arguments = ["--do_train", "false", "--model_name_or_path", str(finished_nmt.folder), *SEARCH]
    arguments += ["--output_dir", "tables"]
    (result,) = run(*arguments)
    expected = finished_nmt.result
    # All ensembles but the fitted ones, which are evaluated only if they were chosen.
    for split, scores in result.translations.items():
        assert scores.items() <= expected.translations[split].items() and expected.ensemble in scores
    assert result.translated == expected.translated and result.ensemble == expected.ensemble
    for split, scores in result.scores.items():
        for ensemble in scores.ensembles:
            assert scores.nll(ensemble) == pytest.approx(expected.scores[split].nll(ensemble))
    assert re.search(r"wdr N=3 +test +22 ", capsys.readouterr().out)
    # Without a validation set, λ is that of the model.
    (test,) = run(*arguments, *pair_files["test"])
    assert list(test.translations) == ["test"] and test.ensemble == expected.ensemble
    assert test.translated == expected.translated
    assert contents(finished_nmt.folder) == before
    assert {path.name for path in contents(tmp_path)} == {"evaluation.md", "evaluation.json"}


def test_translate(finished_nmt, tmp_path, monkeypatch, capsys):
    """One translation per line; an empty line stays empty."""
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
    # The last line may lack a line break; Windows line breaks are accepted.
    Path("text.en").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines[1:8]).encode())
    run(*arguments, "--translate", "text.en", "--translate_to", "text.de")
    assert capsys.readouterr().out == ""
    assert Path("text.de").read_text(encoding="utf-8") == "\n".join(expected[1:8]) + "\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.de", "text.en"]
