"""The package: lint, import cost, versions and commands."""

import itertools
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

from ngram_wdr_hf.backbones.registry import _NAMED
from ngram_wdr_hf.version import __version__
from tests.support.processes import ROOT, run_python

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_lint(command):
    run = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_import_costs_no_more_than_the_backbones():
    """Importing the package loads only its own modules and those of the backbones."""
    backbones = ", ".join(cls.__name__ for cls in _NAMED if cls.__module__.startswith("transformers."))
    script = f"import sys; from transformers import AutoModelForCausalLM, {backbones}; before = set(sys.modules); "
    script += "import ngram_wdr_hf; print('\\n'.join(set(sys.modules) - before))"
    loaded = run_python("-c", script).split()
    assert "ngram_wdr_hf.modeling.causal" in loaded
    surplus = {name for name in loaded if name.split(".")[0] != "ngram_wdr_hf"}
    assert surplus == set()


def test_ci_runs_the_readme_test_command():
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    fences = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    assert commands[0] == "set -e" and len(commands) == 2
    assert any(commands[1] == fence.strip() for fence in fences)


def test_project_files_agree_with_the_package():
    """The citation's version, pre-commit's ruff, and the commands of the guide and of the workflow."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert f"ruff=={hooks['repos'][0]['rev'].removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text()
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1].split(" && ")
    assert all(command in guide for command in commands)
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    assert {"run": "bash .ci/run"} in workflow["jobs"]["tests"]["steps"]


def test_pinned_versions_satisfy_the_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split("\n") if "==" in line)
    requirements = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    for requirement in map(Requirement, requirements):
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_the_first_readme_command_runs_the_script_without_options():
    commands = [fence.strip() for fence in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)]
    assert commands[0].endswith(".venv/bin/python train_clm.py")
