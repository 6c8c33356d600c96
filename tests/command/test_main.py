"""`ngram-wdr`: what it prints without a command, and which code a command runs."""

from unittest.mock import Mock

import pytest

from ngram_wdr_hf.command.main import COMMANDS, main
from ngram_wdr_hf.version import __version__
from tests.support.scripts import one_sentence


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ngram-wdr {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]], ids=str)
def test_overview_names_every_command(arguments, capsys):
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name:<8}{command.summary}\n" in shown for name, command in COMMANDS.items())


@pytest.mark.parametrize("word", ["cml", "--seed"])
def test_unknown_command(word, capsys):
    assert main([word, "--output_dir", "x"]) == 2
    printed = capsys.readouterr()
    sentence = one_sentence(printed.err)
    assert f"`{word}`" in sentence and "clm, nmt, mlm, glue, heads, report, serve" in sentence and printed.out == ""


@pytest.mark.parametrize("command", ["clm", "nmt", "mlm", "glue"])
def test_bad_input_is_the_exit_code(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([command, "--ngram_sise", "3"]) == 2
    assert "`--ngram_sise`" in one_sentence(capsys.readouterr().err)
    assert not any(tmp_path.iterdir())


def test_report_and_serve_name_what_is_missing(tmp_path, capsys):
    for command in ("report", "serve"):
        assert main([command, str(tmp_path / "nowhere")]) == 2
        assert "nowhere" in one_sentence(capsys.readouterr().err)
    assert main(["report"]) == 2
    assert "error: The following arguments are required: RUN." in one_sentence(capsys.readouterr().err)


def test_missing_packages_of_training(monkeypatch, capsys):
    """Where only the package itself is installed, one sentence says what to install."""
    missing = ModuleNotFoundError("No module named 'datasets'", name="datasets")
    monkeypatch.setattr("ngram_wdr_hf.command.main.import_module", Mock(side_effect=missing))
    assert main(["clm"]) == 2
    sentence = one_sentence(capsys.readouterr().err)
    assert "datasets" in sentence and "ngram-wdr-hf[train]" in sentence
