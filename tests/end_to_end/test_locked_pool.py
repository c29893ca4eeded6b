"""A worker that may run only some steps, set up as in docs/how-to/security.md."""

import re
import shutil
import urllib.error

import pytest
from harness.deployment import Deployed, worker_of
from harness.live import ROOT, prefect_server_in, wait_for

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
    """A server only for this test, because its worker must not start runs of other tests."""
    with prefect_server_in(tmp_path / "server-home") as url:
        yield url


@pytest.fixture
def locked(shell, api, work, words):
    """The deployments in the documented pool, with its worker. The folders are the test's."""
    page = (ROOT / "docs" / "how-to" / "security.md").read_text()
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    create, *exports, start = commands.strip().splitlines()
    limits = "; ".join(exports)
    assert "/data/incoming" in limits
    assert "/data/datasets" in limits
    limits = limits.replace("/data/incoming", str(words))
    limits = limits.replace("/data/datasets", str(work / "sets"))
    shutil.copytree(ROOT / "examples" / "locked-pool", work / "examples" / "locked-pool")
    declared = (ROOT / "prefect.yaml").read_text()
    (work / "prefect.yaml").write_text(declared.replace("name: batchmill\n", "name: locked\n"))
    (work / "mine.py").write_text(STEP)
    (work / "sets").mkdir()
    shell.environment["PYTHONPATH"] = str(work)
    for command in (create, "prefect --no-prompt deploy --all"):
        done = shell.run("bash", "-c", command)
        assert done.returncode == 0, done.stdout + done.stderr
    with worker_of(shell, f"{limits}; exec {start}"):
        yield Deployed(api)


@pytest.mark.long
def test_a_form_may_name_only_allowed_steps_and_places(locked, shell, api, words, work):
    good = {"manifest": str(words), "step": SPLIT, "output": str(work / "sets" / "out")}
    bad = {
        "BATCHMILL_ALLOWED_STEPS": {"step": "mine:step"},
        "BATCHMILL_ALLOWED_INPUTS": {"manifest": str(work)},
        "BATCHMILL_ALLOWED_DATASETS": {"output": str(work / "elsewhere")},
    }
    started = {
        name: locked.start("preprocess/run-step", **good | other) for name, other in bad.items()
    }
    # A run may not set its environment or its command.
    made = locked.made("preprocess/run-step")
    for variables in ({"env": {"BATCHMILL_ALLOWED_STEPS": "mine"}}, {"command": "touch imported"}):
        rejected = {"parameters": good | {"step": "mine:step"}, "job_variables": variables}
        with pytest.raises(urllib.error.HTTPError):
            api(f"/deployments/{made['id']}/create_flow_run", rejected)
    # The server does not check a run that is created this way. The worker ignores its variables.
    by_hand = {
        "flow_id": made["flow_id"],
        "deployment_id": made["id"],
        "work_pool_name": "locked",
        "parameters": good | {"step": "mine:step", "output": str(work / "sets" / "by-hand")},
        "job_variables": {"env": {"BATCHMILL_ALLOWED_STEPS": "mine"}},
        "state": {"type": "SCHEDULED"},
    }
    started["BATCHMILL_ALLOWED_STEPS allows: batchmill.steps)"] = api("/flow_runs/", by_hand)["id"]
    # An unsaved cluster could run any code, and an unsaved store could open any place.
    unsaved = {
        "cluster": {"address": "local", "runtime_env": {"env_vars": {"PYTHONPATH": str(work)}}},
        "store": {"url": str(work / "sets")},
    }
    for name, block in unsaved.items():
        started[f"{name}: must"] = locked.start("preprocess/run-step", **good | {name: block})
    job = {"manifest": str(words), "step": SPLIT, "output": good["output"]}
    started["job: must"] = locked.start("saved-job/run-saved-job", job=job)
    for name, flow_run in started.items():
        state = wait_for(lambda run=flow_run: locked.ended(run), f"the end of {name}", 240)
        assert state["type"] == "FAILED"
        assert name in state["message"], (name, state["message"])
    assert not (work / "imported").exists()
    assert list((work / "sets").iterdir()) == []
    assert locked("preprocess/run-step", **good)["message"] == "5 inputs: 5 ok"
    done = shell.python(f"import sys; sys.argv[1:] = {[str(words), good['output']]}\n{SAVE}")
    assert done.returncode == 0, done.stderr
    blocks = {
        block["name"]: block["id"]
        for block in api("/block_documents/filter", {})
        if block["block_type"]["slug"] == "batchmill-saved-job"
    }
    state = locked("saved-job/run-saved-job", job={"$ref": blocks["ours"]})
    assert (state["type"], state["message"]) == ("COMPLETED", "5 inputs: 5 ok")
    state = locked(
        "saved-job/run-saved-job",
        job={"$ref": {"block_document_slug": "batchmill-saved-job/others"}},
    )
    assert (state["type"], "BATCHMILL_ALLOWED_STEPS" in state["message"]) == ("FAILED", True)
    assert not (work / "imported").exists()
