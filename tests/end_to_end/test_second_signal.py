"""A second signal ends a run at once. It leaves no process, no folder and no running flow run."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from harness.comparison import faults
from harness.live import flow_run_of, wait_for

from batchmill.core.ledger.lease import lease
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore

STEPS = """
import ctypes, os, signal, threading
def stubborn(source, out, *, hurry):
    (out / "copy").write_text(source.read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not os.path.exists(hurry):
        threading.Event().wait()
    return {"output": "copy"}

def hanging(source, out, *, hurry):
    (out / "copy").write_text(source.read_text())
    if not os.path.exists(hurry):
        ctypes.PyDLL(None).sleep(600)  # Holds the interpreter's lock.
    return {"output": "copy"}
"""


@pytest.fixture
def scratch(work):
    """Return the folder for temporary files of the commands."""
    (work / "scratch").mkdir()
    return work / "scratch"


def start(shell, scratch, *options, step="stubborn"):
    """Start a run over four inputs in a process group of its own."""
    work = shell.folder
    (work / "slow.py").write_text(STEPS)
    (work / "in").mkdir()
    for name in ("a", "b", "c", "d"):
        (work / "in" / name).write_text(name)
    if "--ray" not in options:  # The sockets of Ray need a short path.
        shell.environment["TMPDIR"] = str(scratch)
    return shell.start(
        *command(work, *options, step=step),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def command(work, *options, step="stubborn"):
    job = ["run", "in", "--step", f"slow:{step}", "-o", "out", "--param", f"hurry={work}/hurry"]
    return [sys.executable, "-m", "batchmill", *job, *options]


def staged(work):
    return list((work / "out" / ".batchmill" / "staging").glob("*/*/copy"))


def wait_for_work(work):
    wait_for(lambda: staged(work), "the first execution", 180)


def check_end(shell, run, scratch):
    """Check that the run has ended, and that it has left no process and no folder."""
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    wait_for(lambda: not shell.leftovers(), lambda: f"the end of {shell.leftovers()}")
    assert not (shell.folder / "out" / ".batchmill" / "staging").exists()
    assert list(scratch.iterdir()) == []
    assert "Cancelled. Committed results are kept" in err
    assert "Traceback" not in err


def check_next_run(shell):
    """Check that the next run completes the dataset."""
    (shell.folder / "hurry").touch()
    done = shell.run(*command(shell.folder))
    assert done.returncode == 0, done.stderr
    assert "4 inputs: 4 ok" in done.stdout
    assert faults(shell.folder / "out") == []


def states_in(home):
    """Return the states of the flow runs that a temporary server has recorded."""
    with closing(sqlite3.connect(Path(home) / "prefect.db")) as database:
        return {state for (state,) in database.execute("SELECT state_type FROM flow_run")}


def test_a_second_ctrl_c_ends_the_run_and_marks_it_as_cancelled(shell, api, work, runner, scratch):
    run = start(shell, scratch, *runner)
    wait_for_work(work)
    os.killpg(run.pid, signal.SIGINT)  # A terminal sends the signal to all processes.
    stop = work / "out" / ".batchmill" / "runs" / "000001" / "stop"
    wait_for(stop.exists, "the response to the first signal")
    os.killpg(run.pid, signal.SIGINT)
    os.killpg(run.pid, signal.SIGINT)
    check_end(shell, run, scratch)
    flow_run, _ = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "CANCELLED"
    check_next_run(shell)


# tests/orchestration/test_interrupts.py sends both signals to this process.
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_one_signal_ends_a_run_that_waits_for_another(shell, api, work, scratch, number):
    ledger = Ledger(LocalStore(work / "out"))
    ledger.create()
    with lease(ledger):
        run = start(shell, scratch, "--wait")
        waiting = {"flow_runs": {"state": {"name": {"any_": ["Waiting"]}}}}

        def is_waiting():
            found = api("/flow_runs/filter", waiting)
            return any(one["parameters"]["output"] == str(work / "out") for one in found)

        wait_for(is_waiting, "the wait", 120)
        os.killpg(run.pid, number)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "Waiting until another run over the dataset has ended" in err
    flow_run, _ = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "CANCELLED"
    assert flow_run["state"]["message"].endswith("while it waited for another run.")
    assert ledger.runs() == []


@pytest.mark.long
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("gap", [0.05, 0.3, 1, 2])
@pytest.mark.parametrize("step", ["stubborn", "hanging"])
def test_a_run_with_a_temporary_server_is_marked_as_cancelled(
    bare_shell, work, scratch, step, gap, second
):
    run = start(bare_shell, scratch, step=step)
    wait_for_work(work)
    os.killpg(run.pid, signal.SIGINT)
    threading.Event().wait(gap)
    os.killpg(run.pid, second)
    check_end(bare_shell, run, scratch)
    assert states_in(bare_shell.environment["PREFECT_HOME"]) == {"CANCELLED"}
    check_next_run(bare_shell)


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5])
def test_two_signals_while_a_run_starts_leave_nothing(bare_shell, work, scratch, delay):
    run = start(bare_shell, scratch)
    wait_for(lambda: os.path.exists(f"/proc/{run.pid}/exe"), "the process")
    wait_for(lambda: b"batchmill" in Path(f"/proc/{run.pid}/cmdline").read_bytes(), "its start")
    threading.Event().wait(delay)
    os.killpg(run.pid, signal.SIGINT)
    threading.Event().wait(0.1)
    if run.poll() is None:
        os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=60)
    # Python itself ends the process with the signal while it imports the command.
    assert run.returncode in (130, -signal.SIGINT)
    wait_for(lambda: not bare_shell.leftovers(), "the end of all processes")
    assert not (work / "out" / ".batchmill" / "staging").exists()
    assert list(scratch.iterdir()) == []
    assert states_in(bare_shell.environment["PREFECT_HOME"]) <= {"CANCELLED", "CRASHED"}
    check_next_run(bare_shell)
