"""Types of the public API, as `py.typed` promises: the package and a program of a user pass the type checker."""

import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

PROGRAM = ROOT / "tests" / "project" / "user_program.py"


def check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the type checker: on the files of pyproject.toml, or on the given ones."""
    command = [sys.executable, "-m", "pyrefly", "check", "--python-interpreter-path", sys.executable]
    return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, encoding="utf-8")


def test_the_public_api_has_the_types_that_a_user_sees():
    run = check()
    assert run.returncode == 0, run.stdout + run.stderr


def test_wrong_types_are_detected(tmp_path):
    text, right = PROGRAM.read_text(encoding="utf-8"), "assert_type(model.config.n_embd, int)"
    assert text.count(right) == 1
    (tmp_path / "program.py").write_text(text.replace(right, right.replace("int", "str")), encoding="utf-8")
    assert check("--preset", "default", "--search-path", ROOT, tmp_path / "program.py").returncode == 1
