"""`batchmill ui` shows the runs without a configured Prefect server."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from harness.live import ask, free_ports, wait_for
from prefect.settings import PREFECT_API_URL, temporary_settings

from batchmill.cli.main import main

SPLIT = "batchmill.steps.words:split"
TASKS = dict.fromkeys(("load manifest", "shard", "write tables", "write report"), "COMPLETED")


def tasks_of(run, address, password):
    """Return the states of a run's task runs, by name."""
    its = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    tasks = ask(f"{address}/api", "/task_runs/filter", its, password=password)
    return {task["name"].partition(" 1/")[0]: task["state"]["type"] for task in tasks}


def test_the_ui_shows_earlier_runs_and_runs_that_start_later(bare_shell, words):
    shell = bare_shell
    job = ["run", words / "manifest.csv", "--step", SPLIT, "-o"]
    assert shell.batchmill(*job, "before").returncode == 0
    (port,) = free_ports()
    ui = shell.start(
        *(sys.executable, "-m", "batchmill", "ui", "--port", port),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    address = f"http://127.0.0.1:{port}"
    assert ui.stdout.readline() == f"Prefect's UI: {address} (until Ctrl-C)\n"
    label, password = ui.stdout.readline().split()
    assert label == "Password:"
    for wrong in (None, "batchmill:guess"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{address}/api", "/flow_runs/filter", {}, password=wrong)
    with urllib.request.urlopen(address) as page:
        assert "Prefect" in page.read().decode()
    with urllib.request.urlopen(f"{address}/ui-settings") as settings:
        assert f'"api_url":"{address}/api"' in settings.read().decode()
    done = shell.batchmill(*job, "meanwhile")
    assert done.returncode == 0, done.stderr
    runs = ask(f"{address}/api", "/flow_runs/filter", {"sort": "START_TIME_ASC"}, password=password)
    assert [run["name"] for run in runs] == ["before: split", "meanwhile: split"]
    assert {run["state"]["type"] for run in runs} == {"COMPLETED"}
    # The server of the first run recorded its task runs at its end. This one records them now.
    earlier, later = runs
    assert tasks_of(earlier, address, password) == TASKS
    wait_for(lambda: tasks_of(later, address, password) == TASKS, "the records of the task runs")
    for run in runs:
        its = {"id": {"any_": [run["id"]]}}
        of_run = {"logs": {"flow_run_id": its["id"]}}
        logs = ask(f"{address}/api", "/logs/filter", of_run, password=password)
        assert any("4 ok in" in log["message"] for log in logs)

    # A second `batchmill ui` uses the same server, and ignores its own port.
    (other,) = free_ports()
    second = shell.start(
        *(sys.executable, "-m", "batchmill", "ui", "--port", other),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert re.search(rf" {address} ", second.stdout.readline())
    for process, number in ((second, signal.SIGTERM), (ui, signal.SIGINT)):
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Ended." in err
    wait_for(lambda: not shell.leftovers(), f"the end of {shell.leftovers()}")


def test_a_port_that_cannot_be_used_is_rejected(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        in_use = taken.getsockname()[1]
        for port, expected in [
            (in_use, "cannot be used (Address already in use)"),
            (70000, "expected a number from 1 to 65535."),
        ]:
            with pytest.raises(SystemExit) as ended:
                main(["ui", "--port", str(port)])
            out, err = capsys.readouterr()
            assert (ended.value.code, out) == (2, "")
            assert f"--port {port}: {expected}" in err


def test_the_address_of_a_configured_server_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with (
        temporary_settings({PREFECT_API_URL: "https://prefect.example.com/api"}),
        pytest.raises(SystemExit) as ended,
    ):
        main(["ui"])
    out, _ = capsys.readouterr()
    assert ended.value.code == 0
    assert out.startswith("Prefect's UI: https://prefect.example.com (")
