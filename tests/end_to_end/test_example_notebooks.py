"""The notebooks in examples/notebooks run from the first cell to the last, with the same outputs.

To save the outputs of executed notebooks in the repository, set BATCHMILL_NOTEBOOKS=save.
"""

import os
import re
import shutil

import nbformat
import pytest
from harness.kernel import kernel_environment
from harness.live import ROOT, clean_environment, shell_in
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def normalised(text, work):
    """Return a notebook as text without what differs between machines and executions."""
    # The files of the datasets are not in the repository.
    text = re.sub(r' href=\\"datasets/[^"]*"', "", text.replace(str(work), "/data"))
    made = nbformat.reads(text, as_version=4)
    for cell in made.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
        for output in cell.get("outputs", []):
            if output["output_type"] == "execute_result":
                output["execution_count"] = None
    made.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(made) + "\n"


def kinds_of_outputs(made):
    """Return the kinds of the outputs of each cell. A stream may arrive in several pieces."""
    return [
        {
            (output["output_type"], *sorted(output.get("data", {})))
            for output in cell.get("outputs", [])
        }
        for cell in made.cells
    ]


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Return a copy of the examples that the notebooks use."""
    work = tmp_path_factory.mktemp("examples")
    for name in ("notebooks", "words", "images", "training"):
        shutil.copytree(ROOT / "examples" / name, work / name)
    return work


@pytest.fixture(scope="module")
def kernel(prefect_server, examples, tmp_path_factory):
    """Yield the manager of a kernel that executes one notebook after another.

    A kernel for each notebook would import Prefect and torch again, which takes seconds.
    """
    home = tmp_path_factory.mktemp("home")
    environment = clean_environment(home) | {"PREFECT_API_URL": prefect_server}
    file = str(home / "connection.json")
    with shell_in(examples / "notebooks", environment | kernel_environment(home)) as shell:
        manager = AsyncKernelManager(kernel_name="python3", connection_file=file)
        run_sync(manager.start_kernel)(env=shell.environment, cwd=str(shell.folder))
        try:
            yield manager
        finally:
            run_sync(manager.shutdown_kernel)()


def execute(made, kernel):
    """Execute the cells of a notebook."""
    client = NotebookClient(made, km=kernel, timeout=180)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()


@pytest.fixture
def executed(kernel, examples):
    """Return a function that executes a notebook in a copy of the examples."""

    def executed(name):
        # A notebook must not use the names of another one.
        execute(new_notebook(cells=[new_code_cell("%reset -f")]), kernel)
        made = nbformat.read(examples / "notebooks" / name, as_version=4)
        execute(made, kernel)
        if os.environ.get("BATCHMILL_NOTEBOOKS") == "save":
            (FOLDER / name).write_text(normalised(nbformat.writes(made), examples))
        saved = nbformat.read(FOLDER / name, as_version=4)
        assert kinds_of_outputs(made) == kinds_of_outputs(saved)
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


def test_from_recordings_to_a_classifier(executed):
    table, samples, accuracy = results(executed("recordings_to_classifier.ipynb"))
    assert "<td>48</td>" in table["text/html"]
    assert samples["text/plain"] == "(['hum', 'trill', 'whistle'], torch.Size([64]))"
    share = int(accuracy["text/plain"].strip("'").partition("%")[0])
    assert share > 80


def test_from_a_cell_to_a_deployment(executed, api):
    tried, state, table = results(executed("cell_to_deployment.ipynb"))
    assert tried["text/plain"].startswith("[{'position': 1, 'letter': 'i'}")
    assert state["text/plain"] == "'Scheduled'"
    assert table["text/html"].count("a.txt") == 2
    assert api("/deployments/name/saved-job/vowels")["work_pool_name"] == "notebook"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_in_git_have_small_outputs_of_no_machine(name):
    text = (FOLDER / name).read_text()
    assert any(kinds_of_outputs(nbformat.reads(text, as_version=4)))
    assert normalised(text, "/tmp/") == text
    assert len(text) < 50_000
