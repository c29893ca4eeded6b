"""Inputs that fail, on each runner and with a real Prefect server."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from harness.live import STEP_MODULES, wait_for
from poison import POISONS, kind_of

EXECUTIONS = {"ok": 1, "timeout": 1, "failed": 2, "crashed": 2, "oom": 2}

A_DOZEN = {
    "valueerror", "systemexit", "keyboard", "unpicklable", "gil", "segfault", "abort", "exit0",
    "kill", "allocate", "fork", "mess",
}  # fmt: skip

# Inputs named `bad...` fail. The others wait until a file `go` exists.
WAITING = """
import os, time
def step(source, *, folder):
    with open(f"{folder}/executed", "a") as file: file.write(source.name + "\\n")
    if source.name.startswith("bad"): raise ValueError("no header")
    while not os.path.exists(f"{folder}/go"): time.sleep(0.05)
    return {"n": 1}
"""


LOGGING = """
import logging
def step(source):
    logging.getLogger("mine").debug("not shown")
    logging.getLogger("mine").warning("odd")
    print("printed")
    return {}
"""


def make_inputs(folder, names):
    folder.mkdir()
    for name in names:
        (folder / name).write_text("x")


def latest_run(api, dataset):
    """Return the latest flow run over a dataset; None before the first one."""
    runs = api("/flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 50})
    return next((run for run in runs if run["parameters"].get("output") == str(dataset)), None)


def artifacts_of(api, run):
    return api("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})


def logs_of(api, run):
    logs = api("/logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200})
    return [log["message"] for log in logs]


@pytest.mark.parametrize(
    ("runner", "num_workers"),
    [("local", 0), ("local", 1), ("local", 4), ("ray", 1)],
    indirect=["runner"],
)
@pytest.mark.long  # tests/runs/workers/test_isolation.py runs the same poisons in this process.
def test_every_poison_has_its_outcome(shell, work, runner, num_workers, is_long):
    # The tests of the engine cover all kinds, in this process.
    kinds = [kind for kind in POISONS if (kind != "huge" if is_long else kind in A_DOZEN)]
    kinds += ["healthy"] * (64 - len(kinds) if is_long else 20)
    names = [f"{number:02d}-{kind}" for number, kind in enumerate(sorted(kinds))]
    make_inputs(work / "in", names)
    shutil.copy(STEP_MODULES / "poison.py", work)
    done = shell.batchmill(
        *["run", "in", "--step", "poison:step", "-o", "out", "--retries", "1"],
        *[
            "--param",
            f"log={work}/log",
            "--timeout",
            "8" if is_long else "3",
            "--memory-limit",
            "300M",
        ],
        *["--batch-size", "8", "--num-workers", str(num_workers), *runner],
    )
    assert done.returncode == 1, done.stderr
    _, status = shell.json("status", "out")
    expected = {name: POISONS.get(kind_of(name), (None, "ok", ""))[1:] for name in names}
    assert status["outcomes"] == Counter(kind for kind, _ in expected.values())
    assert status["pending"] == 0
    failures = json.loads(shell.batchmill("failures", "out", "--json").stdout)
    found = {failure["input"]: (failure["outcome"], failure["error"]) for failure in failures}
    assert found == {name: why for name, why in expected.items() if why[0] != "ok"}
    executions = Counter((work / "log").read_text().split())
    assert executions == {name: EXECUTIONS[kind] for name, (kind, _) in expected.items()}


def test_a_failure_is_shown_during_the_run(shell, api, work, runner):
    make_inputs(work / "in", ["bad.txt", *[f"good{n}.txt" for n in range(7)]])
    (work / "waiting.py").write_text(WAITING)
    run = shell.start(
        *[sys.executable, "-m", "batchmill", "run", "in", "--step", "waiting:step", "-o", "out"],
        *["--param", f"folder={work}", "--batch-size", "1", "--retries", "0", *runner],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def reported():
        """Return the server's table of failures and the log lines about the failure."""
        assert run.poll() is None, run.communicate()
        flow_run = latest_run(api, work / "out")
        if not flow_run:
            return None
        tables = [a for a in artifacts_of(api, flow_run) if a["key"].startswith("failures-out-")]
        lines = [line for line in logs_of(api, flow_run) if line.startswith("bad.txt: failed")]
        return (tables[0], lines) if tables and lines else None

    table, lines = wait_for(reported, "the failure in the log and in a table", seconds=120)
    assert lines == ["bad.txt: failed: ValueError: no header"]
    assert json.loads(table["data"]) == [
        {"input": "bad.txt", "outcome": "failed", "attempts": 1, "reason": "ValueError: no header"}
    ]
    assert next(iter(json.loads(table["data"])[0])) == "reason"
    assert table["description"].startswith("1 not ok in run 1. ")
    (work / "go").touch()
    _, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "1 failed" in err
    wanted = {"flow_runs": {"id": {"any_": [latest_run(api, work / "out")["id"]]}}}
    messages = [one["state"]["message"] for one in api("/task_runs/filter", wanted)]
    assert any(re.fullmatch(r"1 of \d+ inputs failed\.", str(text)) for text in messages)


def test_the_log_of_steps_is_in_the_log_of_the_task_runs(shell, api, work, runner):
    make_inputs(work / "in", [f"{n}.txt" for n in range(4)])
    (work / "logging_step.py").write_text(LOGGING)
    command = ["run", "in", "--step", "logging_step:step", "-o", "out", "--log-steps", "info"]
    assert shell.batchmill(*command, *runner).returncode == 0
    run = latest_run(api, work / "out")
    of_run = {"logs": {"flow_run_id": {"any_": [run["id"]]}}, "limit": 200}

    def found():
        logs = [log for log in api("/logs/filter", of_run) if ".txt: " in log["message"]]
        return logs if len(logs) >= 8 else None

    logs = wait_for(found, "the lines of the steps", seconds=60)
    assert all(log["task_run_id"] for log in logs)
    expected = [f"{n}.txt: {text}" for n in range(4) for text in ("WARNING:mine:odd", "printed")]
    assert Counter(log["message"] for log in logs) == Counter(expected)
    assert {log["level"] for log in logs if "odd" in log["message"]} == {30}


@pytest.mark.long
def test_fail_fast_stops_the_run_and_the_next_run_resumes(shell, api, work, runner):
    make_inputs(work / "in", ["bad.txt", *[f"good{n:02d}.txt" for n in range(30)]])
    (work / "waiting.py").write_text(WAITING)
    command = ["run", "in", "--step", "waiting:step", "-o", "out", "--param", f"folder={work}"]
    command += ["--batch-size", "1", "--retries", "0", *runner]
    # Without --fail-fast, the other inputs would wait forever.
    stopped = shell.batchmill(*command, "--fail-fast")
    assert stopped.returncode == 1
    assert "The run was stopped early" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    _, status = shell.json("status", "out")
    assert (status["outcomes"], status["pending"]) == ({"failed": 1}, 30)
    assert latest_run(api, work / "out")["state"]["type"] == "FAILED"
    (work / "go").touch()
    code, summary = shell.json(*command)
    assert (code, summary["outcomes"], summary["pending"]) == (1, {"ok": 30, "failed": 1}, 0)
    executions = Counter((work / "executed").read_text().split())
    assert executions["bad.txt"] == 1, "a failed input is quarantined"


@pytest.mark.long
def test_a_run_stops_if_its_first_inputs_fail_with_one_cause(shell, api, work, runner):
    make_inputs(work / "in", [f"bad{n:02d}.txt" for n in range(8)] + ["good0.txt", "good1.txt"])
    (work / "waiting.py").write_text(WAITING.replace("raise ValueError", "raise Valueerror"))
    command = ["run", "in", "--step", "waiting:step", "-o", "out", "--param", f"folder={work}"]
    command += ["--batch-size", "1", "--stop-after-same", "6", *runner]
    stopped = shell.batchmill(*command)  # The good inputs wait for a file.
    assert stopped.returncode == 1
    assert "cause: failed: NameError: name 'Valueerror' is not defined" in stopped.stderr
    assert "Run the same command again to execute the pending inputs." in stopped.stderr
    executions = Counter((work / "executed").read_text().split())
    assert {n for name, n in executions.items() if name.startswith("bad")} == {1}
    _, status = shell.json("status", "out")
    assert 6 <= status["outcomes"]["failed"] <= 8
    assert status["pending"] == 10 - status["outcomes"]["failed"]
    assert latest_run(api, work / "out")["state"]["type"] == "FAILED"


def test_fail_fast_at_the_last_input_leaves_nothing_pending(shell, work):
    make_inputs(work / "in", ["bad.txt"])
    (work / "waiting.py").write_text(WAITING)
    command = ["run", "in", "--step", "waiting:step", "-o", "out", "--param", f"folder={work}"]
    ended = shell.batchmill(*command, "--retries", "0", "--fail-fast")
    assert ended.returncode == 1
    assert "1 failed" in ended.stdout + ended.stderr
    assert "pending" not in ended.stderr


@pytest.mark.parametrize(
    ("allowed", "code", "state", "options"),
    [
        ("15%", 0, "COMPLETED", ["--ray", "local"]),
        pytest.param("2", 1, "FAILED", [], marks=pytest.mark.long),
        pytest.param("3", 0, "COMPLETED", [], marks=pytest.mark.long),
        pytest.param("14%", 1, "FAILED", [], marks=pytest.mark.long),
    ],
)
def test_max_failures_decides_the_state_of_the_run(shell, api, work, allowed, code, state, options):
    make_inputs(work / "in", [f"bad{n}" for n in range(3)] + [f"good{n}" for n in range(17)])
    (work / "waiting.py").write_text(WAITING)
    (work / "go").touch()
    done, summary = shell.json(
        *["run", "in", "--step", "waiting:step", "-o", "out", "--param", f"folder={work}"],
        *["--retries", "0", "--max-failures", allowed, *options],
    )
    assert (done, summary["outcomes"]) == (code, {"ok": 17, "failed": 3})
    run = latest_run(api, work / "out")
    assert run["state"]["type"] == state
    if code:
        message = run["state"]["message"]
        assert message.startswith("20 inputs: 17 ok, 3 failed. Group 1, 3 inputs: ValueError: no ")


def test_a_broken_expectation_fails_the_flow_run_and_publishes_nothing(shell, api, work):
    make_inputs(work / "in", ["short.txt", "a-longer-name.txt"])
    (work / "sizes.py").write_text(
        "def step(source):\n    return {'size': source.stat().st_size}\n"
    )
    command = ["run", "in", "--step", "sizes:step", "-o", "out", "--expect"]
    broken = shell.batchmill(*command, "size < 0", "--expect", "size >= 0")
    assert broken.returncode == 1
    assert "Not published: the table breaks an expectation" in broken.stderr
    assert "Traceback" not in broken.stderr
    state = latest_run(api, work / "out")["state"]
    assert state["type"] == "FAILED"
    assert "size < 0: 2 of 2 rows break it" in state["message"]
    assert not (work / "out" / "metadata.parquet").exists()
    code, status = shell.json("status", "out")
    assert (code, "size < 0" in status["unpublished"]) == (0, True)
    code, summary = shell.json(*command, "size >= 0")
    assert (code, summary["executed"], "unpublished" in summary) == (0, 0, False)
    assert (work / "out" / "metadata.parquet").exists()
