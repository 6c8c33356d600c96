"""The package: lint, import cost, public names, versions and commands."""

import itertools
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

import ngram_wdr_hf
from ngram_wdr_hf.version import __version__
from tests.support.processes import ROOT, run_python
from tests.versions import VERSIONS


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


COMMANDS = [fence.strip() for fence in re.findall(r"```bash\n(.*?)```", read("README.md"), flags=re.DOTALL)]
PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
PINS = dict(line.split("==") for line in read("constraints.txt").splitlines() if "==" in line)
IMPORTS = """
import sys
import ngram_wdr_hf
print(*sys.modules, sep="\\n")
ngram_wdr_hf.NgramTrainer, ngram_wdr_hf.fit_ensemble
from transformers import AutoConfig
AutoConfig.for_model("wdr_ngram_gpt2")
print("then", *sys.modules, sep="\\n")
"""


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_lint(command):
    run = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_import_costs_no_more_than_what_is_used():
    """Model classes are imported when they are used, and the trainer needs no optional package but `accelerate`."""
    first, then = (set(part.split()) for part in run_python("-c", IMPORTS).split("then"))
    own = {name for name in then if name.startswith("ngram_wdr_hf.")}
    assert {name for name in first if name.startswith("ngram_wdr_hf.")} == {
        f"ngram_wdr_hf.{x}" for x in ("backbones", "version")
    }
    assert "ngram_wdr_hf.modeling.causal" in own and not {
        name for name in own if re.search("data|analysis|llama", name)
    }
    assert not {"matplotlib", "sacrebleu", "trl"} & then


def test_public_names():
    assert dir(ngram_wdr_hf) == sorted(ngram_wdr_hf.__all__)
    for name in ngram_wdr_hf.__all__:
        assert name == "__version__" or getattr(ngram_wdr_hf, name).__name__ == name
    assert ngram_wdr_hf.metrics.__name__ == "ngram_wdr_hf.metrics"
    with pytest.raises(AttributeError, match="no attribute 'WDRNgramNothing'"):
        _ = ngram_wdr_hf.WDRNgramNothing


def test_commands_agree():
    """Those of the README, of the guide, of the workflow and of CI."""
    setup, command = [line for line in read(".ci/run").splitlines() if line and not line.startswith("#")]
    assert setup == "set -e" and command in COMMANDS and COMMANDS[0].endswith(".venv/bin/python train_clm.py")
    assert all(part in read("CONTRIBUTING.md") for part in command.split(" && "))
    workflow = yaml.safe_load(read(".github/workflows/tests.yml"))
    assert {"run": "bash .ci/run"} in workflow["jobs"]["tests"]["steps"]


def test_versions_agree():
    """Those of the citation, of the changelog, of pre-commit, of the pinned packages, and the versions to test."""
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == __version__
    assert f"\n## [{__version__}] - {citation['date-released']}\n" in read("CHANGELOG.md")
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))
    assert hooks["repos"][0]["rev"] == f"v{PINS['ruff']}"
    requirements = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    for requirement in map(Requirement, requirements):
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(PINS[requirement.name]), requirement
    assert f"transformers>={VERSIONS[0]}" in PROJECT["dependencies"] and PINS["transformers"] in VERSIONS
    assert f'"{VERSIONS[0]} {VERSIONS[-1]}"' in read(".github/workflows/tests.yml")
    weekly = yaml.safe_load(read(".github/workflows/weekly.yml"))["jobs"]["versions"]
    assert weekly["strategy"]["matrix"]["version"] == [*VERSIONS[:-1]]
    assert weekly["steps"][-1]["run"].endswith(f" {VERSIONS[-1]}")
