"""The deployments of prefect.yaml on a server of a test's own, and a worker that runs them."""

import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory

import psutil
from live import ROOT, wait_for


def documented_commands():
    """The commands of docs/how-to/running.md that deploy and start a worker."""
    text = (ROOT / "docs" / "how-to" / "running.md").read_text()
    (block,) = (
        block
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        if "deploy --all" in block
    )
    return block.strip().splitlines()


def has_ended(state):
    """Tell whether a flow run in this state is over."""
    return state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass
class Deployed:
    """What asks an API about deployments and their runs; called, it runs one to its end."""

    api: partial

    def __call__(self, deployment, /, **parameters):
        started = self.start(deployment, **parameters)
        return wait_for(lambda: self.ended(started), f"the end of {deployment}", 240)

    def start(self, deployment, /, **parameters):
        """Start a run of a deployment; gives its id."""
        made = self.made(deployment)
        asked = {"parameters": parameters}
        return self.api(f"/deployments/{made['id']}/create_flow_run", asked)["id"]

    def ended(self, flow_run):
        """Give the state of a flow run that has ended."""
        state = self.api(f"/flow_runs/{flow_run}")["state"]
        return state if has_ended(state) else None

    def made(self, deployment):
        """Give a deployment as the server has it."""
        return self.api(f"/deployments/name/{deployment}")

    def set_parameters(self, deployment, /, **parameters):
        """Give a deployment these parameters, and no others."""
        made = self.made(deployment)
        self.api(f"/deployments/{made['id']}", {"parameters": parameters}, "PATCH")

    def runs(self, deployment):
        """Give the flow runs of a deployment, in their order."""
        of_it = {"deployments": {"id": {"any_": [self.made(deployment)["id"]]}}}
        return self.api("/flow_runs/filter", of_it | {"sort": "START_TIME_ASC"})


def deploy(shell, api, work):
    """Register the deployments as docs/how-to/running.md says."""
    create, deploy, _ = documented_commands()
    (work / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    for command in (create, deploy):
        done = shell.run("bash", "-c", command)
        assert done.returncode == 0, done.stdout + done.stderr
    return Deployed(api)


@contextmanager
def worker_of(shell, command=None):
    """Run a worker, by the documented command or another; waits for its runs' processes."""
    *_, documented = documented_commands()
    # To no pipe: nobody reads it while the test waits.
    command = ["bash", "-c", command or f"exec {documented}"]
    # A worker leaves a folder in that for temporary files.
    with TemporaryDirectory(prefix="worker-") as folder:
        worker = shell.start("env", f"TMPDIR={folder}", *command, stdout=subprocess.DEVNULL)
        try:
            yield worker
            # Asked to end while a run's process is ending, Prefect's worker may not do so.
            runs = psutil.Process(worker.pid)
            wait_for(
                lambda: not runs.children(recursive=True), "the end of its runs' processes", 60
            )
        finally:
            worker.kill()
            worker.wait(60)
