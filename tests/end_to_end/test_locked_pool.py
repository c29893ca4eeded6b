"""A worker on which only some steps may be run: docs/security.md, with a saved job beside it."""

import re
import subprocess
import urllib.error

import psutil
import pytest
from deployment import Deployed
from live import ROOT, prefect_server_in, wait_for

STEP = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
def step(source, out): return {"letters": len(source.read_text())}
"""
SAVE = """
import sys
from batchmill.blocks import SavedJob
_, manifest, output = sys.argv
SavedJob(manifest=manifest, step="batchmill.steps.words:split", output=output).save("ours")
SavedJob(manifest=manifest, step="mine:step", output=output).save("others")
"""
SPLIT = "batchmill.steps.words:split"


@pytest.fixture
def prefect_server(tmp_path):
    """A server of the test's own: its worker is to find no other's runs."""
    with prefect_server_in(tmp_path / "server-home") as url:
        yield url


@pytest.fixture
def locked(shell, api, work, words):
    """The documented pool and its worker, with the test's folders; runs deployments."""
    page = (ROOT / "docs" / "security.md").read_text()
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    create, start = commands.strip().splitlines()
    template = (ROOT / "examples" / "locked-pool" / "base-job-template.json").read_text()
    assert "/data/incoming" in template
    assert "/data/datasets" in template
    template = template.replace("/data/incoming", str(words))
    template = template.replace("/data/datasets", str(work / "sets"))
    (work / "examples" / "locked-pool").mkdir(parents=True)
    (work / "examples" / "locked-pool" / "base-job-template.json").write_text(template)
    declared = (ROOT / "prefect.yaml").read_text()
    (work / "prefect.yaml").write_text(declared.replace("name: batchmill\n", "name: locked\n"))
    (work / "mine.py").write_text(STEP)
    (work / "sets").mkdir()
    shell.environment["PYTHONPATH"] = str(work)
    for command in (create, "prefect --no-prompt deploy --all"):
        done = shell.run("bash", "-c", command)
        assert done.returncode == 0, done.stdout + done.stderr
    worker = shell.start("bash", "-c", f"exec {start}", stdout=subprocess.DEVNULL)
    try:
        yield Deployed(api)
        runs = psutil.Process(worker.pid)
        wait_for(lambda: not runs.children(recursive=True), "the end of its runs' processes", 60)
    finally:
        worker.kill()
        worker.wait(60)


def test_a_form_can_name_what_is_allowed_and_nothing_else(locked, shell, api, words, work):
    good = {"manifest": str(words), "step": SPLIT, "output": str(work / "sets" / "out")}
    bad = {
        "BATCHMILL_ALLOWED_STEPS": {"step": "mine:step"},
        "BATCHMILL_ALLOWED_INPUTS": {"manifest": str(work)},
        "BATCHMILL_ALLOWED_DATASETS": {"output": str(work / "elsewhere")},
    }
    started = {
        name: locked.start("preprocess/manual", **good | other) for name, other in bad.items()
    }
    # Neither environment nor command is a run's own to choose.
    made = locked.made("preprocess/manual")
    for variables in ({"env": {"BATCHMILL_ALLOWED_STEPS": "mine"}}, {"command": "touch imported"}):
        asked = {"parameters": good | {"step": "mine:step"}, "job_variables": variables}
        with pytest.raises(urllib.error.HTTPError):
            api(f"/deployments/{made['id']}/create_flow_run", asked)
    for name, flow_run in started.items():
        state = wait_for(lambda run=flow_run: locked.ended(run), f"the end of {name}", 240)
        assert state["type"] == "FAILED"
        assert f"({name}: " in state["message"]
    assert not (work / "imported").exists()
    assert list((work / "sets").iterdir()) == []
    assert locked("preprocess/manual", **good)["message"] == "5 inputs: 5 ok"
    done = shell.python(f"import sys; sys.argv[1:] = {[str(words), good['output']]}\n{SAVE}")
    assert done.returncode == 0, done.stderr
    blocks = {
        block["name"]: block["id"]
        for block in api("/block_documents/filter", {})
        if block["block_type"]["slug"] == "batchmill-saved-job"
    }
    state = locked("saved-job/manual", job={"$ref": blocks["ours"]})
    assert (state["type"], state["message"]) == ("COMPLETED", "5 inputs: 5 ok")
    state = locked(
        "saved-job/manual", job={"$ref": {"block_document_slug": "batchmill-saved-job/others"}}
    )
    assert (state["type"], "BATCHMILL_ALLOWED_STEPS" in state["message"]) == ("FAILED", True)
    assert not (work / "imported").exists()
