"""Nodes that join during a run get shards, and idle nodes get inputs of a slow shard."""

import subprocess

import pytest
from comparison import committed, contents, faults
from gated import INPUTS, command, executions, places
from live import flow_run_of, wait_for


@pytest.mark.long
def test_a_node_that_joins_during_a_run_gets_shards(shell, cluster, node, undisturbed, work):
    node()
    options = ["--ray", cluster.client_address]
    run = shell.start(*command(work, "out", *options, go=work / "go", first=10))
    wait_for(lambda: places(work, "out"), "executions on the first node", 120)
    node()
    wait_for(lambda: len(places(work, "out")) == 2, "executions on the second node", 120)
    (work / "go").touch()
    assert run.wait(120) == 0
    assert contents(work / "out") == contents(undisturbed)


def test_idle_nodes_get_the_pending_inputs_of_a_slow_shard(
    shell, api, cluster, node, undisturbed, work
):
    for _ in range(2):
        node()
    options = ["--ray", cluster.client_address]
    # One input waits, so the later inputs of its shard are pending.
    gate = work / "go"
    run = shell.start(
        *command(work, "out", *options, go=gate, first=10, last=10), stdout=subprocess.PIPE
    )
    wait_for(lambda: len(committed(work / "out")) == INPUTS - 1, "all other inputs", 180)
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
