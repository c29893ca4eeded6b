"""The deployments of prefect.yaml: registered, run by a worker."""

import json
import re
import subprocess

import pandas as pd
import psutil
import pytest
from live import ROOT, wait_for


def documented_commands():
    """The commands of docs/running.md that deploy and start a worker."""
    text = (ROOT / "docs" / "running.md").read_text()
    (block,) = (
        block
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        if "deploy --all" in block
    )
    return block.strip().splitlines()


@pytest.fixture
def deployed(shell, api, work):
    """The deployments of prefect.yaml, and a worker; gives what starts a run and waits for it."""
    create, deploy, start_worker = documented_commands()
    (work / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    for command in (create, deploy):
        done = shell.run("bash", "-c", command)
        told = done.stdout + done.stderr
        assert done.returncode == 0 or "already exists" in told, told
    # To no pipe: nobody reads it while the test waits.
    worker = shell.start("bash", "-c", f"exec {start_worker}", stdout=subprocess.DEVNULL)

    def run(deployment, **parameters):
        made = api(f"/deployments/name/{deployment}")
        started = api(f"/deployments/{made['id']}/create_flow_run", {"parameters": parameters})
        return wait_for(lambda: ended(api, started["id"]), f"the end of {deployment}", 240)

    try:
        yield run
        # Asked to end while a run's process is ending, Prefect's worker may not do so.
        runs = psutil.Process(worker.pid)
        wait_for(lambda: not runs.children(recursive=True), "the end of its runs' processes", 60)
    finally:
        worker.kill()
        worker.wait(60)


def ended(api, flow_run):
    state = api(f"/flow_runs/{flow_run}")["state"]
    return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None


def test_deployments_run_the_same_flow(deployed, shell, api, words, work):
    schema = api("/deployments/name/preprocess/manual")["parameter_openapi_schema"]
    assert {"manifest", "step", "output"} == set(schema["required"])
    assert all(described.get("description") for described in schema["properties"].values())

    split = "batchmill.steps.words:split"
    good = {"manifest": str(words / "manifest.csv"), "step": split, "output": str(work / "out")}
    state = deployed("preprocess/manual", **good)
    assert state["type"] == "COMPLETED", state
    bad = good | {"manifest": str(words / "nosuch.csv"), "output": str(work / "bad")}
    state = deployed("preprocess/manual", **bad)
    assert state["type"] == "FAILED"
    assert "no such file or folder" in state["message"]
    assert len(pd.read_parquet(work / "out" / "metadata.parquet")) == 31
    code, status = shell.json("status", "out")
    assert (code, status["outcomes"]) == (0, {"ok": 4})
    assert not (work / "bad").exists()
    assert json.loads((work / "out" / ".batchmill" / "format.json").read_text()) == {"ledger": 2}

    state = deployed("verify-dataset/manual", dataset=str(work / "out"))
    assert state["type"] == "COMPLETED", state
    (work / "out" / "metadata.csv").unlink()
    state = deployed("verify-dataset/manual", dataset=str(work / "out"), repair=True)
    assert state["type"] == "FAILED"
    assert "1 missing. Repaired" in state["message"]
    state = deployed("preprocess/manual", **good)
    assert state["message"] == "4 inputs: 4 ok"
