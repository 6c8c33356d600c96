"""
Test the package with several versions of Transformers, each in an environment of its own, and print a table of what
passed. Checkpoints saved under each version are loaded under all others.

    python tests/versions.py                  # all versions
    python tests/versions.py 5.16.1 5.23.0    # some
    python tests/versions.py lowest           # the lowest versions of all dependencies that pyproject.toml allows
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".versions"
# The newest patch of each.
VERSIONS = ("5.16.1", "5.17.0", "5.18.0", "5.19.0", "5.20.2", "5.21.1", "5.22.2", "5.23.0")
EXTRAS = "train,lora,sft"
TOOLS = ("pytest", "pytest-xdist", "packaging", "ruff")
# Other constraints are those of constraints.txt. Transformers decides about the Hub's client.
FREE = ("transformers", "huggingface_hub")
# Features, each with the tests of it: those of the first that matches count.
FEATURES = {
    "import": "project.test_package",
    "losses": "method",
    "ensemble in greedy and beam search": "modeling.test_ensemble|modeling.test_generat|modeling.test_encoder_decoder",
    "save, load": "modeling.test_checkpoints|modeling.test_saved_before",
    "code in checkpoints": "modeling.test_code_file",
    "adapters": "modeling.test_adapters",
    "other model features": "modeling",
    "drafts": "decoding",
    "backbones": "backbones",
    "Trainer, TRL": "training.test_trainer|training.test_sft|training.test_distributed",
    "evaluation": "evaluation|metrics",
    "scripts, data": "training|data|analysis",
}
TESTS = ("method", "modeling", "decoding", "backbones", "evaluation", "metrics", "training", "data", "analysis")


def lowest_requirements() -> list[str]:
    """Return the lowest version of each dependency that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(one for name in EXTRAS.split(",") for one in extras[name])]
    return [requirement.replace(">=", "==") for requirement in listed]


def python_of(version: str) -> str:
    """Return the interpreter of a version's environment, which is made if it does not exist."""
    folder = ENVIRONMENTS / version
    python = str(folder / "bin" / "python")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        wanted = [f"transformers=={version}"]
        if version == "lowest":
            wanted = lowest_requirements()
            pins = [pin for pin in pins if pin.startswith(("torch==", *TOOLS))]
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(pin for pin in pins if not pin.startswith(FREE)), encoding="utf-8")
        install = [python, "-m", "pip", "install", "-q", "-c", constraints, "-e", f"{ROOT}[{EXTRAS}]"]
        subprocess.run([*install, *wanted, *TOOLS], check=True)
        (folder / "complete").touch()
    return python


def run_tests(version: str) -> dict[str, Counter]:
    """Run the tests in a version's environment. Return the numbers of tests by feature and outcome."""
    with tempfile.TemporaryDirectory() as folder:
        report, paths = Path(folder) / "report.xml", [f"tests/{name}" for name in TESTS]
        command = [python_of(version), "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "not slow", "--tb=short"]
        paths.append("tests/project/test_package.py::test_public_names")
        subprocess.run([*command, f"--junitxml={report}", "-p", "no:cacheprovider", *paths], cwd=ROOT)
        counts = {feature: Counter() for feature in FEATURES}
        for case in ElementTree.parse(report).iter("testcase"):
            feature = next(name for name, parts in FEATURES.items() if re.search(parts, case.get("classname")))
            outcomes = {child.tag: child.get("type") for child in case if child.tag in ("failure", "error", "skipped")}
            counts[feature]["expected" if "pytest.xfail" in outcomes.values() else next(iter(outcomes), "passed")] += 1
        return counts


def cell(counts: Counter) -> str:
    """Return the outcomes of a feature in one version for the table."""
    failed = counts["failure"] + counts["error"]
    extra = {"failed": failed, "expected to fail": counts["expected"], "skipped": counts["skipped"]}
    return ", ".join([f"{counts['passed']}", *(f"{number} {name}" for name, number in extra.items() if number)])


def exchange(versions: list[str]) -> dict[str, str]:
    """Save checkpoints under each version, and load them under each. Return the outcome by the loading version."""
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
        module = ["-m", "tests.exchange"]
        for version in versions:
            command = [python_of(version), *module, "save", folder]
            subprocess.run(command, cwd=ROOT, env=environment, check=True)
        for version in versions:
            run = subprocess.run([python_of(version), *module, "load", folder], cwd=ROOT, env=environment)
            outcomes[version] = "failed" if run.returncode else "the same logits"
    return outcomes


def main() -> None:
    versions = sys.argv[1:] or list(VERSIONS)
    counts = {}
    for version in versions:
        counts[version] = run_tests(version)
        print(f"{version}: {cell(sum(counts[version].values(), Counter()))}", flush=True)
    exchanged = exchange(versions)
    print("\n| tests passed | " + " | ".join(versions) + " |\n|---|" + "---|" * len(versions))
    for feature in FEATURES:
        print(f"| {feature} | " + " | ".join(cell(counts[version][feature]) for version in versions) + " |")
    print("| checkpoints of all these versions | " + " | ".join(exchanged.values()) + " |")
    has_failed = any(one["failure"] or one["error"] for found in counts.values() for one in found.values())
    sys.exit(has_failed or "failed" in exchanged.values())


if __name__ == "__main__":
    main()
