"""A project of `batchmill init`: a user's own step, deployed with the wheel only."""

import re
from functools import partial

import pandas as pd
import pytest
from harness.deployment import worker_of
from harness.live import ROOT, ask, prefect_server_in
from harness.wheel import build_wheel, environment_with

PAGE = (ROOT / "docs" / "how-to" / "project.md").read_text()


@pytest.fixture
def prefect_server(tmp_path):
    """A server only for this test, because its worker must not start runs of other tests."""
    with prefect_server_in(tmp_path / "server-home") as url:
        yield url


@pytest.fixture
def project(shell, work, tmp_path):
    """The project of `batchmill init`. The shell has batchmill from the wheel."""
    commands = environment_with(build_wheel(tmp_path / "wheel"), tmp_path / "environment")
    shell.environment["PATH"] = f"{commands}:{shell.environment['PATH']}"
    shell.environment.pop("PYTHONPATH", None)
    done = shell.run("python", "-c", "import batchmill; print(batchmill.__file__)")
    assert done.stdout.startswith(str(tmp_path / "environment")), done.stdout + done.stderr
    done = shell.run("batchmill", "init", work / "project")
    assert done.returncode == 0, done.stderr
    return work / "project"


@pytest.fixture
def worker(shell, project, tmp_path):
    """The page's worker, started in another folder, after its pool and deployment exist."""
    create, deploy, start = commands_of(PAGE)[0]
    for command in (create, deploy):
        done = shell.run("bash", "-c", f"cd {project} && {command}")
        assert done.returncode == 0, done.stdout + done.stderr
    with worker_of(shell, f"cd / && exec {start}") as worker:
        yield worker


def commands_of(page):
    return [block.strip().splitlines() for block in re.findall(r"```bash\n(.*?)```", page, re.S)]


def documented_table():
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if ".txt |" in line]
    columns = ["input", "words", "different", "most", "times"]
    numbers = dict.fromkeys(("words", "different", "times"), "int64")
    return pd.DataFrame(rows, columns=columns).astype(numbers)


@pytest.mark.long
def test_the_projects_deployment_runs_its_own_step(shell, prefect_server, project, worker):
    api = partial(ask, prefect_server)
    ((run,),) = commands_of(PAGE)[1:]

    def run_deployment():
        """Run the deployment with the documented command; return the flow run."""
        done = shell.run("bash", "-c", f"cd / && {run}")
        runs = api("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
        assert done.returncode == 0, (done.stdout, done.stderr, runs)
        assert runs[0]["state"]["type"] == "COMPLETED"
        return runs[0]

    first = run_deployment()
    assert first["state"]["message"] == "3 inputs: 3 ok"
    table = pd.read_csv(project / "counts" / "metadata.csv")
    expected = documented_table()
    pd.testing.assert_frame_equal(table[expected.columns], expected, check_dtype=False)

    # The next run uses changed code without another deploy.
    code = (project / "wordcount.py").read_text()
    (project / "wordcount.py").write_text(code.replace("words.total()", "words.total() * 100"))
    second = run_deployment()
    assert second["id"] != first["id"]
    table = pd.read_csv(project / "counts" / "metadata.csv")
    assert table["words"].tolist() == [100 * count for count in expected["words"]]
