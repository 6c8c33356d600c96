"""`ngram-wdr`: which function a command calls, its errors in one line, and its exit codes."""

from types import SimpleNamespace

import pytest

from ngram_wdr_hf import cli
from ngram_wdr_hf.cli import COMMANDS, main, run_script
from ngram_wdr_hf.data.errors import InputError
from ngram_wdr_hf.version import __version__

INSTALL = 'pip install "ngram-wdr-hf[train]"'
LIST = "".join(f"  {name:<8}{summary}\n" for name, (_, summary) in COMMANDS.items())


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        ([], 0, LIST),
        (["--version"], 0, f"ngram-wdr {__version__}\n"),
        (["cml", "--output_dir", "x"], 2, "'cml'"),
    ],
    ids=str,
)
def test_without_a_command(arguments, code, part, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == code and part in (printed.err if code else printed.out)


def test_a_command_gets_its_own_options(monkeypatch):
    imported, calls = [], []
    module = SimpleNamespace(main=calls.append)
    monkeypatch.setattr(cli, "import_module", lambda name: imported.append(name) or module)
    assert main(["heads", "gpt2", "--help", "--seed", "1"]) == main(["--debug", "heads", "gpt2", "--debug"]) == 0
    assert imported == ["ngram_wdr_hf.training.heads"] * 2 and calls == [["gpt2", "--help", "--seed", "1"], ["gpt2"]]


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (InputError("No such\nfile."), "error: No such file."),
        (KeyError("x"), "error: KeyError: 'x' (`--debug` shows the traceback)"),
        (ModuleNotFoundError("No a"), f"error: ModuleNotFoundError: No a: `{INSTALL}` installs what scripts need"),
    ],
)
def test_errors_are_one_line(error, printed, capsys):
    def script(arguments):
        raise error

    assert run_script(script, ["x"]) == 1 and capsys.readouterr() == ("", f"{printed}\n")
    with pytest.raises(type(error)):
        run_script(script, ["x", "--debug"])


@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_ctrl_c(rank, monkeypatch, capsys):
    """Under a launcher, only the first process prints a line."""
    if rank is not None:
        monkeypatch.setenv("RANK", rank)

    def script(arguments):
        raise KeyboardInterrupt

    assert run_script(script, []) == 130
    assert capsys.readouterr().err == ("" if rank == "1" else "\nStopped. Repeat the command to resume.\n")
