"""Bad input to the scripts: one sentence, exit code 2, nothing written."""

import runpy

import pytest

from tests.support.errors import assert_names
from tests.support.processes import ROOT
from tests.support.scripts import failing


@pytest.fixture
def fail(tmp_path, monkeypatch, capsys):
    return failing(ROOT / "experiments" / "run.py", tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    "arguments, names",
    [
        ("", ["table"]),
        ("unknown", ["unknown", "ptb"]),
        ("ptb --scale large", ["--scale large", "small"]),
        ("ptb --scale smoke --only wdr-9", ["--only wdr-9", "wdr-4"]),
        ("ptb --data missing", ["missing", "ptb.train.txt"]),
        ("ptb", ["--data", "ptb.train.txt"]),
        ("ptb --scale smoke --seeds one", ["--seeds", "one"]),
        ("ptb --scale smoke --seeds -1", ["--seeds"]),
        ("ptb --scale smoke --jobs 0", ["--jobs"]),
        ("ptb --report --results .", ["ptb-small.json"]),
        ("ptb --unknown", ["--unknown"]),
    ],
)
def test_bad_input(fail, arguments, names):
    assert_names(fail(*arguments.split()), *names)


def test_help(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "experiments" / "run.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert not stopped.value.code and "table" in printed and "--scale VALUE" in printed


def test_verdicts_without_results(tmp_path, monkeypatch, capsys):
    assert_names(failing(ROOT / "experiments" / "verdicts.py", tmp_path, monkeypatch, capsys)("--x"), "--x")
