"""Wheel and source distribution: what they contain, and that the wheel works where there is no checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from ngram_wdr_hf.command.main import HELP
from ngram_wdr_hf.version import __version__
from tests.support.processes import ROOT

PACKAGE = "ngram_wdr_hf"
# Caches, environments and what was made by running the project.
NOT_PACKAGED = shutil.ignore_patterns(
    "__pycache__", ".*_cache", ".git", ".gitignore", ".venv", "*.egg-info", "build", "dist", "runs", "site"
)


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


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A copy of this checkout: building leaves files in the folder of the sources."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("copy") / "sources", ignore=NOT_PACKAGED)


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory) -> Path:
    """The source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    run("-m", "build", "--no-isolation", "--outdir", folder, sources, folder=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the installed wheel and without its dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    run("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", folder, wheel, folder=folder)
    return folder


def test_source_distribution(sources, built):
    """It has every file of the project, so the tests can be run from it."""
    expected = {name for name in files_in(sources) if ".egg-info/" not in name}
    with tarfile.open(built / f"{PACKAGE}-{__version__}.tar.gz") as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert not expected - packed


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


def test_changelog_has_the_version_and_its_date():
    date = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["date-released"]
    assert f"\n## [{__version__}] - {date}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
