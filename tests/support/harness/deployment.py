"""Register the deployments of prefect.yaml on a test's server, and run a worker for them."""

import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory

import psutil

from harness.live import ROOT, wait_for


def documented_commands():
    """Return the commands of docs/how-to/running.md that deploy, and that start a worker."""
    text = (ROOT / "docs" / "how-to" / "running.md").read_text()
    (block,) = (
        block
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        if "deploy --all" in block
    )
    return block.strip().splitlines()


def has_ended(state):
    """Return whether a flow run in this state has ended."""
    return state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass
class Deployed:
    """Queries an API for deployments and their runs. A call runs a deployment to its end."""

    api: partial

    def __call__(self, deployment, /, **parameters):
        started = self.start(deployment, **parameters)
        return wait_for(lambda: self.ended(started), f"the end of {deployment}", 240)

    def start(self, deployment, /, **parameters):
        """Start a run of a deployment; return its id."""
        made = self.made(deployment)
        body = {"parameters": parameters}
        return self.api(f"/deployments/{made['id']}/create_flow_run", body)["id"]

    def ended(self, flow_run):
        """Return the state of a flow run if it has ended, else None."""
        state = self.api(f"/flow_runs/{flow_run}")["state"]
        return state if has_ended(state) else None

    def made(self, deployment):
        """Return a deployment from the server."""
        return self.api(f"/deployments/name/{deployment}")

    def set_parameters(self, deployment, /, **parameters):
        """Replace all parameters of a deployment."""
        made = self.made(deployment)
        self.api(f"/deployments/{made['id']}", {"parameters": parameters}, "PATCH")

    def runs(self, deployment):
        """Return the flow runs of a deployment, oldest first."""
        of_deployment = {"deployments": {"id": {"any_": [self.made(deployment)["id"]]}}}
        return self.api("/flow_runs/filter", of_deployment | {"sort": "START_TIME_ASC"})


def deploy(shell, api, work, text=""):
    """Register deployments with the commands of docs/how-to/running.md. Default: prefect.yaml."""
    create, deploy, _ = documented_commands()
    (work / "prefect.yaml").write_text(text or (ROOT / "prefect.yaml").read_text())
    for command in (create, deploy):
        done = shell.run("bash", "-c", command)
        assert done.returncode == 0, done.stdout + done.stderr
    return Deployed(api)


@contextmanager
def worker_of(shell, command=None):
    """Run a worker with the documented command or another; wait for its runs' processes."""
    *_, documented = documented_commands()
    # A pipe would fill up, because the test does not read it while it waits.
    command = ["bash", "-c", command or f"exec {documented}"]
    # The worker leaves a folder in its folder for temporary files.
    with TemporaryDirectory(prefix="worker-") as folder:
        worker = shell.start("env", f"TMPDIR={folder}", *command, stdout=subprocess.DEVNULL)
        try:
            yield worker
            # Prefect's worker may ignore a signal while a run's process is ending.
            runs = psutil.Process(worker.pid)
            wait_for(
                lambda: not runs.children(recursive=True), "the end of its runs' processes", 60
            )
        finally:
            worker.kill()
            worker.wait(60)
