"""Nodes that join in mid-run get work, and what one has not begun at the end goes to the others."""

import subprocess

import pytest
from comparison import committed, contents, faults
from gated import INPUTS, command, executions, places
from live import flow_run_of, wait_for


@pytest.mark.long
def test_a_node_that_joins_gets_work(shell, cluster, node, undisturbed, work):
    node()
    options = ["--ray", cluster.client_address]
    run = shell.start(*command(work, "out", *options, go=work / "go", first=10))
    wait_for(lambda: places(work, "out"), "the first node to be at work", 120)
    node()
    wait_for(lambda: len(places(work, "out")) == 2, "the second to be", 120)
    (work / "go").touch()
    assert run.wait(120) == 0
    assert contents(work / "out") == contents(undisturbed)


def test_what_a_straggler_has_not_begun_goes_to_others(
    shell, api, cluster, node, undisturbed, work
):
    for _ in range(2):
        node()
    options = ["--ray", cluster.client_address]
    # The first of its shard waits, and those behind it with it.
    gate = work / "go"
    run = shell.start(
        *command(work, "out", *options, go=gate, first=10, last=10), stdout=subprocess.PIPE
    )
    wait_for(lambda: len(committed(work / "out")) == INPUTS - 1, "all others to be done", 180)
    gate.touch()
    out, _ = run.communicate(timeout=120)
    assert run.returncode == 0
    assert f"{INPUTS} inputs: {INPUTS} ok" in out
    assert len(executions(work, "out")) == INPUTS
    _, task_runs = flow_run_of(api, work / "out")
    assert any("split off" in task_run["name"] for task_run in task_runs)
    assert {task_run["state"]["type"] for task_run in task_runs} == {"COMPLETED"}
    assert contents(work / "out") == contents(undisturbed)
    assert faults(work / "out") == []
