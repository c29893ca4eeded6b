"""The deployments of prefect.yaml: registered, scheduled, run by a worker."""

import json

import pandas as pd
import pytest
from harness import gated
from harness.comparison import committed, contents
from harness.deployment import deploy, worker_of
from harness.live import ROOT, prefect_server_in, wait_for

from batchmill.core.ledger.parts import VERSION

COPY = (
    "def step(source, out):\n"
    "    (out / 'a.txt').write_text(source.read_text())\n"
    "    return {'output': 'a.txt'}\n"
)


@pytest.fixture
def prefect_server(tmp_path):
    """A server for each test, because a schedule may leave runs that another worker would start."""
    with prefect_server_in(tmp_path / "server-home") as url:
        yield url


@pytest.fixture
def deployed(shell, api, work):
    """The deployments of prefect.yaml, with a worker that can run steps from the folder `work`."""
    shell.environment["PYTHONPATH"] = str(work)
    deployments = deploy(shell, api, work)
    with worker_of(shell):
        yield deployments


@pytest.fixture
def job(words, work):
    """The parameters of a run that is Completed."""
    split = "batchmill.steps.words:split"
    return {"manifest": str(words / "manifest.csv"), "step": split, "output": str(work / "out")}


@pytest.mark.journey
def test_a_deployment_runs_the_flow_of_the_command(deployed, shell, api, job, work):
    schema = api("/deployments/name/preprocess/run-step")["parameter_openapi_schema"]
    assert {"manifest", "step", "output"} == set(schema["required"])
    # An option group has the description of its model.
    assert all(
        {"description", "$ref"} & described.keys() for described in schema["properties"].values()
    )

    state = deployed("preprocess/run-step", **job)
    assert state["type"] == "COMPLETED", state
    assert len(pd.read_parquet(work / "out" / "metadata.parquet")) == 31
    code, status = shell.json("status", "out")
    assert (code, status["outcomes"]) == (0, {"ok": 4})
    made = json.loads((work / "out" / ".batchmill" / "format.json").read_text())
    assert made == {"ledger": VERSION}


@pytest.mark.long
def test_errors_of_a_deployment_say_how_to_fix_its_worker(deployed, job, words, work):
    wrong = {"manifest": str(words / "nosuch.csv"), "output": str(work / "bad")}
    state = deployed("preprocess/run-step", **job | wrong)
    assert state["type"] == "FAILED"
    assert "no such file or folder" in state["message"]
    assert not (work / "bad").exists()
    # The worker removes the run's working folder at the end.
    for deployment, parameters, place in [
        ("preprocess/run-step", job | {"output": "out"}, "output out"),
        ("verify-dataset/verify", {"dataset": "out"}, "dataset out"),
        ("watch-source/announce-files", {"source": "in", "deployment": "a/b"}, "source in"),
    ]:
        state = deployed(deployment, **parameters)
        assert state["type"] == "FAILED"
        assert f"{place}: a deployment's run works in a temporary folder" in state["message"]
    # A user of the UI has no shell on the worker, so this message differs from the command's.
    state = deployed("preprocess/run-step", **job | {"step": "nosuch:step"})
    assert "no module 'nosuch' where the worker runs" in state["message"]
    assert "the worker's PYTHONPATH" in state["message"]


@pytest.mark.long
def test_deployments_run_on_ray_verify_and_repair(deployed, job, work):
    state = deployed("preprocess/run-step", **job)
    assert state["type"] == "COMPLETED", state
    on_ray = job | {"output": str(work / "on-ray"), "cluster": {"address": "local"}}
    state = deployed("preprocess/run-step", **on_ray)
    assert state["type"] == "COMPLETED", state
    assert contents(work / "on-ray") == contents(work / "out")
    state = deployed("verify-dataset/verify", dataset=str(work / "out"), execute=3)
    assert state["type"] == "COMPLETED", state
    assert "3 of 4 results made again on" in state["message"]
    exported = {"dataset": str(work / "out"), "out": str(work / "shards")}
    state = deployed("export/export", **exported)
    assert (state["type"], state["message"][:11]) == ("COMPLETED", "31 samples ")
    (work / "out" / "metadata.csv").unlink()
    state = deployed("verify-dataset/verify", dataset=str(work / "out"), repair=True)
    assert state["type"] == "FAILED"
    assert "1 missing. Run the job again to rebuild" in state["message"]
    state = deployed("preprocess/run-step", **job)
    assert state["message"] == "4 inputs: 4 ok"


@pytest.mark.long
def test_a_dataset_is_updated_when_the_one_before_it_has_changed(shell, api, words, work):
    """Two datasets and the deployment `on-publish`, as in docs/how-to/chains.md."""
    clips, features = str(work / "clips"), str(work / "features")
    (work / "copying.py").write_text(COPY)
    shell.environment["PYTHONPATH"] = str(work)
    for manifest, output in ((str(words / "manifest.csv"), clips), (clips, features)):
        job = (manifest, "--step", "copying:step", "--output", output)
        assert shell.batchmill("run", *job).returncode == 0
    text = (ROOT / "prefect.yaml").read_text()
    text = text.replace("/data/clips", clips).replace("/data/features", features)
    deployments = deploy(shell, api, work, text)
    (words / "new.txt").write_text("new")
    with (words / "manifest.csv").open("a") as manifest:
        manifest.write("new.txt\n")
    with worker_of(shell):
        state = deployments("update-dataset/on-publish", dataset=clips)
        assert (state["type"], state["message"]) == ("COMPLETED", f"{clips}: 5 inputs: 5 ok")

        def updated():
            runs = deployments.runs("update-dataset/on-publish")
            return [run for run in runs if run["parameters"]["dataset"] == features]

        (run,) = wait_for(updated, "the run that the event starts", 120)
        state = wait_for(lambda: deployments.ended(run["id"]), "its end", 120)
    assert state["type"] == "COMPLETED", state
    assert len(pd.read_parquet(work / "features" / "metadata.parquet")) == 5


@pytest.mark.long
def test_a_schedule_starts_a_run(deployed, api, words, work):
    nightly = api("/deployments/name/preprocess/nightly")
    ((cron, active),) = [(made["schedule"], made["active"]) for made in nightly["schedules"]]
    assert (cron["cron"], cron["timezone"], active) == ("30 2 * * *", "Europe/Berlin", False)
    at = f"/deployments/{nightly['id']}"
    output = str(work / "scheduled")
    parameters = {"step": "batchmill.steps.words:split", "output": output, "manifest": str(words)}
    api(at, {"parameters": parameters}, "PATCH")
    (made,) = api(f"{at}/schedules", [{"active": True, "schedule": {"interval": 15.0}}])

    def runs(*states):
        found = deployed.runs("preprocess/nightly")
        return [run for run in found if run["state"]["type"] in states]

    try:
        wait_for(lambda: runs("PENDING", "RUNNING", "COMPLETED"), "a scheduled run", 240)
    finally:
        # A run takes longer than the interval on a busy machine, and then more and more runs exist.
        api(f"{at}/schedules/{made['id']}", None, "DELETE")
    run, *_ = wait_for(lambda: runs("COMPLETED"), "the end of the run", 240)
    assert run["auto_scheduled"]
    assert run["name"] == "scheduled: split"
    assert (work / "scheduled" / "metadata.csv").exists()


@pytest.mark.long
def test_a_cancelled_run_sets_its_own_state_and_can_be_completed(deployed, shell, api, work):
    gated.make_inputs(work)
    log = str(work / "out.log")
    job = {"manifest": str(work / "in"), "step": "slow:step", "output": str(work / "out")}
    params = {"log": log, "go": str(work / "go"), "first": 50}
    flow_run = deployed.start(
        "preprocess/run-step", **job, params=params, execution={"batch_size": 1}
    )
    wait_for(lambda: len(committed(work / "out")) >= 4, "some commits", 180)
    done = shell.run("prefect", "flow-run", "cancel", flow_run)
    assert done.returncode == 0, done.stderr
    state = wait_for(lambda: deployed.ended(flow_run), "the end of the run", 60)
    assert state["type"] == "CANCELLED"
    # The run wrote this message. The worker's message for a killed run has no count.
    assert " pending" in state["message"]
    before, at = committed(work / "out"), len(gated.executions(work, "out"))
    (work / "go").touch()
    state = deployed("preprocess/run-step", **job, params=params)
    assert (state["type"], state["message"]) == ("COMPLETED", "60 inputs: 60 ok")
    assert not before & {name for name, _ in gated.executions(work, "out")[at:]}
