"""Runs without a configured Prefect server share one temporary server."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from harness.comparison import contents, faults
from harness.live import wait_for

SPLIT = "batchmill.steps.words:split"


def servers(shell):
    """Return the process ids of the Prefect servers that the shell's commands started."""
    found = set()
    for process in shell.leftovers():
        with suppress(psutil.Error):  # The process has just ended.
            is_one = "batchmill.orchestration.server.server_process" in process.cmdline()
            # A second server process ends before it listens, because one server is enough.
            if is_one and any(c.status == "LISTEN" for c in process.net_connections("tcp")):
                found.add(process.pid)
    return found


@pytest.mark.long
def test_two_runs_at_once_share_one_server(bare_shell, words):
    shell = bare_shell
    runs = [
        shell.start(
            sys.executable, "-m", "batchmill", "run", words / "manifest.csv", "--step", SPLIT,
            "-o", output, "--batch-size", "1",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for output in ("one", "two")
    ]  # fmt: skip
    seen = set()

    def both_have_ended():
        seen.update(servers(shell))
        return all(run.poll() is not None for run in runs)

    wait_for(both_have_ended, "the end of both runs", 180)
    for run in runs:
        out, err = run.communicate()
        assert run.returncode == 0, err
        assert "4 inputs: 4 ok" in out
    assert len(seen) == 1
    wait_for(lambda: not shell.leftovers(), f"the end of {shell.leftovers()}")


def test_the_server_of_a_killed_run_ends(bare_shell, words, work):
    (work / "slow.py").write_text("import threading\ndef step(source): threading.Event().wait()\n")
    run = bare_shell.start(
        sys.executable, "-m", "batchmill", "run", words, "--step", "slow:step", "-o", "out",
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: servers(bare_shell), "the temporary server", 120)
    wait_for(lambda: (work / "out").exists(), "the start of the run", 120)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    wait_for(lambda: not servers(bare_shell), "the end of the server")


@pytest.mark.long
def test_a_run_whose_server_is_killed_completes_the_dataset(bare_shell, work):
    shell = bare_shell
    shell.environment["PREFECT_CLIENT_MAX_RETRIES"] = "0"
    # The first ten inputs end immediately. The others wait until the server is killed.
    (work / "slow.py").write_text(
        "import os, time\n"
        "def step(source, out):\n"
        f"    while int(source.stem) >= 10 and not os.path.exists('{work}/go'): time.sleep(0.05)\n"
        "    (out / 'copy').write_text(source.read_text())\n"
        "    return {'output': 'copy'}\n"
    )
    (work / "in").mkdir()
    for number in range(60):
        (work / "in" / f"{number:02d}.txt").write_text(f"{number:02d}")
    command = ["run", "in", "--step", "slow:step", "--batch-size", "4", "-o"]
    run = shell.start(
        sys.executable, "-m", "batchmill", *command, "out",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    parts = work / "out" / ".batchmill" / "parts"
    wait_for(lambda: parts.exists() and any(parts.iterdir()), "some commits", 120)
    for pid in servers(shell):
        os.kill(pid, signal.SIGKILL)
    (work / "go").touch()
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert "60 inputs: 60 ok" in out
    assert "Prefect's history of this run is incomplete" in out
    assert "Traceback" not in err
    assert shell.batchmill(*command, "undisturbed").returncode == 0
    assert contents(work / "out") == contents(work / "undisturbed")
    assert faults(work / "out") == []


def test_an_error_in_the_arguments_starts_no_server(bare_shell, tmp_path):
    done = bare_shell.batchmill("run", "nosuch.csv", "--step", SPLIT, "-o", "out")
    assert done.returncode == 2
    assert not (tmp_path / "home" / "batchmill").exists()
