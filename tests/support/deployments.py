"""The deployments of prefect.yaml, registered as docs/running.md says, and a worker."""

import re
import subprocess
from contextlib import contextmanager

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


@contextmanager
def deployments(shell):
    """Register them in a shell, and run a worker; steps may be in the shell's folder."""
    shell.environment["PYTHONPATH"] = str(shell.folder)
    create, deploy, start_worker = documented_commands()
    (shell.folder / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    for command in (create, deploy):
        done = shell.run("bash", "-c", command)
        assert done.returncode == 0, done.stdout + done.stderr
    # To no pipe: nobody reads it while the test waits.
    worker = shell.start("bash", "-c", f"exec {start_worker}", stdout=subprocess.DEVNULL)
    try:
        yield
        # Asked to end while a run's process is ending, Prefect's worker may not do so.
        runs = psutil.Process(worker.pid)
        wait_for(lambda: not runs.children(recursive=True), "the end of its runs' processes", 60)
    finally:
        worker.kill()
        worker.wait(60)


def start(api, deployment, **parameters):
    """Start a run of a deployment; give its id."""
    made = api(f"/deployments/name/{deployment}")
    return api(f"/deployments/{made['id']}/create_flow_run", {"parameters": parameters})["id"]


def ended(api, flow_run):
    """The state in which a flow run has ended, if it has."""
    state = api(f"/flow_runs/{flow_run}")["state"]
    return state if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None
