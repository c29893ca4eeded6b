"""The deployment `manual`: registered from prefect.yaml, run by a worker, the same flow."""

import json
import re
import subprocess

import pandas as pd
import psutil
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


def test_a_deployment_runs_the_same_flow(shell, api, words, work):
    create, deploy, start_worker = documented_commands()
    (work / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    for command in (create, deploy):
        done = shell.run("bash", "-c", command)
        assert done.returncode == 0, done.stdout + done.stderr

    deployment = api("/deployments/name/preprocess/manual")
    properties = deployment["parameter_openapi_schema"]["properties"]
    assert {"manifest", "step", "output"} == set(deployment["parameter_openapi_schema"]["required"])
    assert all(described.get("description") for described in properties.values())

    def start(**parameters):
        return api(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})

    split = "batchmill.steps.words:split"
    good = start(manifest=str(words / "manifest.csv"), step=split, output=str(work / "out"))
    bad = start(manifest=str(words / "nosuch.csv"), step=split, output=str(work / "bad"))
    # To no pipe: nobody reads it while the test waits.
    worker = shell.start("bash", "-c", f"exec {start_worker}", stdout=subprocess.DEVNULL)

    def ended(run):
        state = api(f"/flow_runs/{run['id']}")["state"]
        return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED") else None

    try:
        state = wait_for(lambda: ended(good), "the good run's end", 180)
        assert state["type"] == "COMPLETED", state
        state = wait_for(lambda: ended(bad), "the bad run's end", 180)
        assert state["type"] == "FAILED"
        assert "no such file or folder" in state["message"]
        # Asked to end while a run's process is ending, Prefect's worker may not do so.
        runs = psutil.Process(worker.pid)
        wait_for(lambda: not runs.children(recursive=True), "the end of its runs' processes", 60)
    finally:
        worker.kill()
        worker.wait(60)
    assert len(pd.read_parquet(work / "out" / "metadata.parquet")) == 31
    code, status = shell.json("status", "out")
    assert (code, status["outcomes"]) == (0, {"ok": 4})
    assert not (work / "bad").exists()
    assert json.loads((work / "out" / ".batchmill" / "format.json").read_text()) == {"ledger": 2}
