"""A Prefect server that requires a password, set up as in docs/how-to/prefect-server.md."""

import re
import shutil

import pytest
from harness.live import ROOT, ask, prefect_server_in

PAGE = (ROOT / "docs" / "how-to" / "prefect-server.md").read_text()


def setting(name):
    """Return a setting from the page, as a dict of the name and its value."""
    (value,) = set(re.findall(rf"{name}=(\S+)", PAGE))
    return {name: value}


@pytest.mark.long
def test_a_run_needs_the_password_of_a_server_that_has_one(bare_shell, work, tmp_path):
    shutil.copytree(ROOT / "examples" / "words", work / "words")
    job = ["words/manifest.csv", "--step", "batchmill.steps.words:split", "--output", "parts"]
    locked = setting("PREFECT_SERVER_API_AUTH_STRING")
    with prefect_server_in(tmp_path / "server-home", environment=locked) as url:
        bare_shell.environment["PREFECT_API_URL"] = url
        bare_shell.environment["PREFECT_API_AUTH_STRING"] = "mill:wrong"
        done = bare_shell.batchmill("run", *job)
        assert done.returncode == 2, done.stderr
        assert f"PREFECT_API_URL={url} rejected the credentials" in done.stderr
        assert "Set PREFECT_API_AUTH_STRING=USER:PASSWORD" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (work / "parts").exists()

        bare_shell.environment |= setting("PREFECT_API_AUTH_STRING")
        done = bare_shell.batchmill("run", *job)
        assert done.returncode == 0, done.stderr
        (password,) = locked.values()
        runs = ask(url, "/task_runs/filter", {}, password=password)
        assert "shard 1/1, 4 inputs" in {run["name"] for run in runs}
        assert {run["state"]["type"] for run in runs} == {"COMPLETED"}
