"""The wheel: what it contains, and that it works where there is no checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from ngram_wdr_hf.command.main import HELP
from ngram_wdr_hf.version import __version__
from tests.support.processes import ROOT

PACKAGE = "ngram_wdr_hf"
NOT_PACKAGED = shutil.ignore_patterns("__pycache__")


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Run Python in `folder`, check that it succeeds, and return its output."""
    process = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this checkout, built in a copy: building leaves files in the folder of the sources."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT / PACKAGE, sources / PACKAGE, ignore=NOT_PACKAGED)
    shutil.copytree(ROOT / "tests" / "project", sources / "tests", ignore=NOT_PACKAGED)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "MANIFEST.in", "train_clm.py"):
        shutil.copy(ROOT / name, sources)
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", built, sources, folder=built)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the installed wheel and without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    run("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", folder, wheel, folder=folder)
    return folder


def test_content(wheel):
    """The whole package with its licenses, and nothing else."""
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    information = f"{PACKAGE}-{__version__}.dist-info"
    names = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE", "licenses/NOTICE")
    with ZipFile(wheel) as archive:
        assert set(archive.namelist()) == package | {f"{information}/{name}" for name in names}
        metadata = archive.read(f"{information}/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata and "\nLicense-Expression: Apache-2.0\n" in metadata


def test_command_without_a_checkout(installed, tmp_path):
    """`-S` hides what is installed: the command finds only the wheel's files, and needs no more for its help."""

    def command(*arguments: str) -> str:
        return run("-S", installed / "bin" / "ngram-wdr", *arguments, folder=tmp_path, PYTHONPATH=str(installed))

    assert command("--version") == f"ngram-wdr {__version__}\n"
    assert command("clm", "--help") == (HELP / "clm.txt").read_text(encoding="utf-8")
    printed = run(
        "-S", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", folder=tmp_path, PYTHONPATH=str(installed)
    )
    assert Path(printed.strip()).parent == installed / PACKAGE


def test_changelog_has_the_version():
    assert f"\n## [{__version__}]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
