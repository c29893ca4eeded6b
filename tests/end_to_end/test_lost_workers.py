"""Shard processes die, or a run is cancelled. No committed result is lost on any runner."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pandas as pd
import psutil
import pytest
from harness.comparison import committed, faults
from harness.live import flow_run_of, wait_for

STEP = """
import asyncio, os, signal, threading, time
def step(source, out, *, log="", seconds=0.1, hurry=""):
    if log:
        with open(log, "a") as file: file.write(source.name + "\\n")
    if not (hurry and os.path.exists(hurry)):
        time.sleep(seconds)
    (out / "copy").write_text(source.read_text())
    return {"output": "copy"}

async def waits(source, out, *, log, seconds):
    with open(log, "a") as file: file.write(source.name + "\\n")
    await asyncio.sleep(2 * seconds)
    (out / "copy").write_text(source.read_text())
    return {"output": "copy"}

def deadly(source, out, *, log=""):
    if source.name == "007.txt":
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()
    return step(source, out, log=log, seconds=0.01)
"""
FINAL = {"COMPLETED", "CRASHED", "FAILED", "CANCELLED"}


@pytest.fixture
def inputs(work):
    """Writes the steps. Returns a function that makes `count` inputs and returns their names."""
    (work / "slow.py").write_text(STEP)

    def make(count):
        (work / "in").mkdir()
        names = [f"{number:03d}.txt" for number in range(count)]
        for name in names:
            (work / "in" / name).write_text(name)
        return set(names)

    return make


def copied(dataset):
    """Return the inputs whose output is correct."""
    rows = pd.read_parquet(dataset / "metadata.parquet")
    return {
        name
        for name, output in zip(rows["input"], rows["output"], strict=True)
        if (dataset / output).read_text() == name
    }


def start(shell, step, output, *options):
    return shell.start(
        sys.executable, "-m", "batchmill", "run", "in", "--step", step, "-o", output, *options,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def shard_processes(shell):
    """Return the processes that run shards, on any runner."""
    found = []
    for process in shell.leftovers():
        with suppress(psutil.NoSuchProcess):
            name, command = process.name(), process.cmdline()
            if name.startswith("ray::run_shard") or "batchmill.runs.shards.process" in command:
                found.append(process)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "concurrency"), [("slow:step", []), ("slow:waits", ["--concurrency", "2"])]
)
def test_a_lost_shards_inputs_are_finished_in_the_same_run(
    shell, api, inputs, work, runner, step, concurrency
):
    names = inputs(60)
    options = ["--param", f"log={work}/log", "--batch-size", "4", "--num-workers", "2", *runner]
    # All inputs are in one shard, which takes some seconds. Its process is killed twice.
    run = start(shell, step, "out", "--param", "seconds=0.2", *concurrency, *options)
    for number in (8, 24):
        wait_for(lambda n=number: len(committed(work / "out")) >= n, "some commits", 180)
        (worker, *_) = wait_for(lambda: shard_processes(shell), "the shard's process", 180)
        done = committed(work / "out")
        before = (work / "log").read_text().split()
        worker.kill()
        wait_for(lambda w=worker: not w.is_running(), "the end of the process", 60)
        wait_for(lambda d=done: len(committed(work / "out")) > len(d), "new commits", 180)
        assert not done & set((work / "log").read_text().split()[len(before) :])
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert "60 inputs: 60 ok" in out
    assert copied(work / "out") == names
    assert faults(work / "out") == []

    flow_run, tasks = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "COMPLETED"
    crashed = [task for task in tasks if task["state"]["type"] == "CRASHED"]
    assert {task["state"]["type"] for task in tasks} == {"COMPLETED", "CRASHED"}
    assert len(crashed) == 2
    assert all(task["state"]["message"] for task in crashed)
    names = [task["name"] for task in tasks]
    assert any(", attempt " in name for name in names), names


@pytest.mark.journey
def test_an_input_that_kills_the_process_of_its_shard_is_identified(
    shell, api, inputs, work, runner
):
    inputs(12)
    code, summary = shell.json(
        *["run", "in", "--step", "slow:deadly", "-o", "out", "--param", f"log={work}/log"],
        *["--batch-size", "4", "--num-workers", "1", *runner],
    )
    assert (code, summary["outcomes"]) == (1, {"ok": 11, "crashed": 1})
    _, (failure,) = shell.json("failures", "out")
    assert failure["input"] == "007.txt"
    assert (failure["outcome"], failure["error"]) == ("crashed", "ShardProcessDied")
    assert "process died each time it ran this input alone" in failure["message"]
    assert runner or "SIGKILL" in failure["message"]
    flow_run, tasks = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "FAILED"
    assert {task["state"]["type"] for task in tasks} <= {"COMPLETED", "CRASHED"}


@pytest.mark.long
def test_no_input_fails_because_a_local_ray_has_died(shell, api, inputs, work):
    inputs(100)
    # There are several shards, because a single shard may end before Ray does.
    options = ["--batch-size", "4", "--num-workers", "1", "--ray", "local"]
    run = start(shell, "slow:step", "out", "--param", "seconds=0.3", *options)
    wait_for(lambda: committed(work / "out"), "some commits", 180)
    for process in shell.leftovers():
        if process.name() == "raylet":
            process.kill()
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "Ray on the machine of the flow run has died" in err
    assert "Run the same command again to execute the pending inputs." in err
    flow_run, tasks = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "FAILED"
    assert {task["state"]["type"] for task in tasks} <= FINAL
    code, summary = shell.json("run", "in", "--step", "slow:step", "-o", "out")
    assert (code, summary["outcomes"]) == (0, {"ok": 100})
    assert faults(work / "out") == []


def cancel_by_ctrl_c(run, _api, _work):
    os.killpg(run.pid, signal.SIGINT)  # A terminal sends the signal to all processes.


def cancel_by_sigterm(run, _api, _work):
    run.terminate()


def cancel_in_prefect(_, api, work):
    flow_run, _ = flow_run_of(api, work / "out")
    state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    api(f"/flow_runs/{flow_run['id']}/set_state", state)


@pytest.mark.journey
def test_a_killed_or_cancelled_run_can_be_completed(shell, api, inputs, work, runner, sample):
    names = inputs(100)
    log = work / "log"
    # The step is slow, because the run must not end before it detects the cancellation.
    params = {"log": log, "seconds": 0.5, "hurry": work / "hurry"}
    given = [part for name, value in params.items() for part in ("--param", f"{name}={value}")]
    options = [*given, "--batch-size", "2", *runner]

    run = start(shell, "slow:step", "out", *options)
    wait_for(lambda: len(committed(work / "out")) >= 2, "some commits", 180)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    wait_for(lambda: not shell.leftovers(), "the end of all processes")
    killed, _ = flow_run_of(api, work / "out")
    assert killed["state"]["type"] == "RUNNING"

    for cancel in sample((cancel_by_sigterm, cancel_in_prefect, cancel_by_ctrl_c), 1):
        before, logged = committed(work / "out"), len(log.read_text().split())
        run = start(shell, "slow:step", "out", *options)
        enough = len(before) + 6
        wait_for(lambda n=enough: len(committed(work / "out")) >= n, "more commits", 180)
        cancel(run, api, work)
        cancelled_at = time.monotonic()
        out, err = run.communicate(timeout=60)
        wait_for(lambda: not shell.leftovers(), "the end of all processes")
        print(f"{cancel.__name__}: {time.monotonic() - cancelled_at:.1f} s")
        assert run.returncode == 130, out + err
        assert "Cancelled. Committed results are kept" in err
        assert " pending" in err
        assert "Traceback" not in err
        done = committed(work / "out")
        assert enough <= len(done) < len(names)
        executed = log.read_text().split()[logged:]
        assert sorted(executed) == sorted(done - before), "an input was started but not committed"
        flow_run, tasks = flow_run_of(api, work / "out")
        assert flow_run["state"]["type"] == "CANCELLED"
        assert {task["state"]["type"] for task in tasks} <= FINAL

    logged = len(log.read_text().split())
    (work / "hurry").touch()
    code, summary = shell.json("run", "in", "--step", "slow:step", "-o", "out", *options)
    assert (code, summary["outcomes"]) == (0, {"ok": 100})
    assert sorted(log.read_text().split()[logged:]) == sorted(names - done)
    assert copied(work / "out") == names
    assert faults(work / "out") == []

    # The next run has recorded in Prefect that the killed run has crashed.
    state = api(f"/flow_runs/{killed['id']}")["state"]
    assert (state["type"], state["message"]) == (
        "CRASHED",
        "The process was killed. Run 2 resumes the work.",
    )
    of_run = {"flow_runs": {"id": {"any_": [killed["id"]]}}, "limit": 200}
    states = {task["state"]["type"] for task in api("/task_runs/filter", of_run)}
    assert states <= FINAL
