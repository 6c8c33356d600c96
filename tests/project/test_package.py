"""The package: lint, import cost, versions and commands."""

import itertools
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from transformers import CONFIG_MAPPING, AutoConfig

import ngram_wdr_hf
from ngram_wdr_hf.auto_classes import register_model_types
from ngram_wdr_hf.backbones.registry import _NAMED
from ngram_wdr_hf.version import __version__
from tests.support.processes import ROOT, run_python

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_lint(command):
    run = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


IMPORTS = """
import sys
import ngram_wdr_hf
assert not {{"numpy", "torch", "transformers"}} & sys.modules.keys()
from transformers import AutoConfig, AutoModelForCausalLM, {backbones}
assert "ngram_wdr_hf.backbones" not in sys.modules
before = set(sys.modules)
AutoConfig.for_model("wdr_ngram_gpt2")
print("\\n".join(set(sys.modules) - before))
"""


def test_import_costs_no_more_than_what_is_used():
    """The package alone imports no other library, and its models import only its own modules and the backbones."""
    backbones = ", ".join(cls.__name__ for cls in _NAMED if cls.__module__.startswith("transformers."))
    loaded = run_python("-c", IMPORTS.format(backbones=backbones)).split()
    assert "ngram_wdr_hf.modeling.causal" in loaded
    surplus = {name for name in loaded if name.split(".")[0] != "ngram_wdr_hf"}
    assert surplus == set()


def test_public_names():
    assert set(ngram_wdr_hf.__all__) <= set(dir(ngram_wdr_hf))
    for name in ngram_wdr_hf.__all__:
        found = getattr(ngram_wdr_hf, name)
        assert name == "__version__" or found.__name__ == name
    assert ngram_wdr_hf.metrics.__name__ == "ngram_wdr_hf.metrics"
    with pytest.raises(AttributeError, match="no attribute 'WDRNgramNothing'"):
        _ = ngram_wdr_hf.WDRNgramNothing


def test_model_types_are_known_if_transformers_was_imported_before():
    """A type of each kind: with a named class, with one on demand, and without a language model."""
    unknown = CONFIG_MAPPING._extra_content
    for name in ("wdr_ngram_olmo", "wdr_ngram_vit"):
        unknown.pop(name, None)
    register_model_types()
    assert AutoConfig.for_model("wdr_ngram_gpt2").ngram_size == 4
    assert type(AutoConfig.for_model("wdr_ngram_olmo", ngram_size=3)).__name__ == "WDRNgramOlmoConfig"
    with pytest.raises(ValueError, match="no causal or encoder-decoder language model of type `vit`"):
        AutoConfig.for_model("wdr_ngram_vit")


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
