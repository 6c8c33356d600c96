"""The notebooks run from top to bottom, without the network, and are kept with what they showed."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.processes import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["01_quickstart", "02_wdr_targets", "03_gradient_diversity", "04_ensemble_and_speculation", "05_translation"]
# Seconds for a cell, and for a whole notebook on two quiet cores; here, others may be at work.
PATIENCE = 600


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook: nbformat.NotebookNode) -> list[str]:
    """The pictures in a notebook's outputs."""
    return [
        output.data["image/png"]
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]


def test_they_are_all_there():
    assert [path.stem for path in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(path.parents[1]))
    kept = nbformat.read(path, as_version=4)
    fresh = nbformat.from_dict(kept)
    for cell in code_cells(fresh):
        cell.outputs, cell.execution_count = [], None
    # An error in a cell is an error here.
    NotebookClient(fresh, timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert not [output for cell in code_cells(fresh) for output in cell.outputs if output.output_type == "error"]
    # Kept as it was run, once and in order, with as many pictures, and without the paths of a machine.
    assert [cell.execution_count for cell in code_cells(kept)] == list(range(1, len(code_cells(kept)) + 1))
    assert len(pictures(kept)) == len(pictures(fresh)) >= 1
    texts = "".join(output.get("text", "") for cell in code_cells(kept) for output in cell.outputs)
    assert not re.search(r"(^|[\s'\"(])/(tmp|opt|root|home|usr|work)/", texts)
