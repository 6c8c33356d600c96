"""Types of the public API, as `py.typed` promises: the package and a program of a user pass the type checker."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

PROGRAM = ROOT / "tests" / "project" / "user_program.py"


def check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the type checker: on the files of pyproject.toml, or on the given ones."""
    command = [sys.executable, "-m", "pyrefly", "check", "--python-interpreter-path", sys.executable]
    command += ["--output-format", "min-text", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")


def test_the_public_api_has_the_types_that_a_user_sees():
    run = check()
    assert run.returncode == 0, run.stdout + run.stderr


def test_wrong_types_are_detected(tmp_path):
    """The same program with wrong expectations and an unknown name: an error for each."""
    text = PROGRAM.read_text(encoding="utf-8")
    changes = {
        "import (\n    NgramEnsemble": "import (\n    WDRNgramNothing,\n    NgramEnsemble",
        "assert_type(model, NgramMixin)": "assert_type(model, GPT2LMHeadModel)",
        "assert_type(model.config.ngram_size, int)": "assert_type(model.config.ngram_size, str)",
        "assert_type(model.config, WDRNgramConfig)": "assert_type(model.config, WDRNgramMarianConfig)",
        "use_mtp=True, ensemble_lambda=0.4": 'use_mtp=True, ensemble_lambda="0.4"',
    }
    for right, wrong in changes.items():
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    run = check("--preset", "default", "--search-path", ROOT, program)
    assert run.returncode == 1
    assert len(set(re.findall(r"program\.py:(\d+):", run.stdout))) == len(changes), run.stdout
