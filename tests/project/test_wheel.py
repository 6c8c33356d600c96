"""Wheel and source distribution: what they contain, and that the wheel works where there is no checkout."""

import shutil
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from ngram_wdr_hf.version import __version__
from tests.support.processes import ROOT, run_python

pytestmark = pytest.mark.slow

PACKAGE = "ngram_wdr_hf"
# Caches, environments and what was made by running the project.
NOT_PACKAGED = shutil.ignore_patterns(
    "__pycache__", ".*_cache", ".git", ".gitignore", ".venv", "*.egg-info", "build", "dist", "runs", "site"
)


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """
    A copy of this checkout in `sources`, as building leaves files there; in `built` the source distribution and the
    wheel that is built from it; in `installed` the wheel's content without its dependencies.
    """
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "sources", ignore=NOT_PACKAGED)
    run_python("-m", "build", "--no-isolation", "--outdir", folder / "built", folder / "sources", folder=folder)
    (wheel,) = (folder / "built").glob("*.whl")
    options = ["--no-deps", "--no-index", "--quiet", "--target", folder / "installed"]
    run_python("-m", "pip", "install", *options, wheel, folder=folder)
    return folder


def test_source_distribution(folder):
    """It has every file of the project, so the tests can be run from it."""
    expected = {name for name in files_in(folder / "sources") if ".egg-info/" not in name}
    with tarfile.open(folder / "built" / f"{PACKAGE}-{__version__}.tar.gz") as archive:
        assert not expected - {name.partition("/")[2] for name in archive.getnames()}


def test_wheel(folder):
    """The whole package with its licenses, and nothing else."""
    package = {f"{PACKAGE}/{name}" for name in files_in(ROOT / PACKAGE) if "__pycache__" not in name}
    information = f"{PACKAGE}-{__version__}.dist-info"
    names = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE", "licenses/NOTICE")
    with ZipFile(next((folder / "built").glob("*.whl"))) as archive:
        assert set(archive.namelist()) == package | {f"{information}/{name}" for name in names}
        metadata = archive.read(f"{information}/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata


def test_command_without_a_checkout(folder, tmp_path):
    where = folder / "installed"
    options = {"folder": tmp_path, "PYTHONPATH": str(where)}
    assert run_python(where / "bin" / "ngram-wdr", "--version", **options) == f"ngram-wdr {__version__}\n"
    printed = run_python("-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", **options)
    assert Path(printed.strip()).parent == where / PACKAGE
