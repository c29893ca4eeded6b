"""The notebooks in examples/notebooks run from the first cell to the last."""

import shutil

import nbformat
import pytest
from kernel import kernel_environment
from live import ROOT
from nbclient import NotebookClient

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


@pytest.fixture
def executed(shell, work, tmp_path, monkeypatch):
    """Return a function that executes a notebook in a copy of the examples."""
    for name in ("notebooks", "words", "images"):
        shutil.copytree(ROOT / "examples" / name, work / name)
    environment = shell.environment | kernel_environment(tmp_path)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", environment["JUPYTER_RUNTIME_DIR"])

    def executed(name):
        made = nbformat.read(work / "notebooks" / name, as_version=4)
        resources = {"metadata": {"path": str(work / "notebooks")}}
        NotebookClient(made, timeout=180, resources=resources).execute(env=environment)
        return [output for cell in made.cells for output in cell.get("outputs", [])]

    return executed


def results(outputs):
    return [output["data"] for output in outputs if output["output_type"] == "execute_result"]


def test_the_first_dataset(executed):
    rows, first, _, again, plan, *_, versions = results(executed("first_dataset.ipynb"))
    assert "{'position': 0, 'letter': 's'}" in rows["text/plain"]
    assert "4 inputs: 4 ok" in first["text/html"]
    assert again["text/plain"] == "0"
    assert plan["text/plain"].startswith("4 inputs to execute (4 changed)")
    assert "<td>35</td>" in versions["text/html"]


def test_pictures_and_failures(executed):
    outputs = executed("pictures_and_failures.ipynb")
    first, failures, tried, last = results(outputs)
    assert "3 inputs: 1 ok, 2 failed" in first["text/html"]
    assert first["text/html"].count("data:image/jpeg;base64,") == 2  # One failed picture is 16-bit.
    assert "the mode of the picture is" in failures["text/html"]
    assert tried["text/plain"].startswith("('ok', [{'output': 'small.png'")
    assert "3 inputs: 3 ok" in last["text/html"]
    assert last["text/html"].count("data:image/jpeg;base64,") == 3
    assert not [output for output in outputs if output["output_type"] == "stream"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_in_git_have_no_outputs(name):
    cells = nbformat.read(FOLDER / name, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
