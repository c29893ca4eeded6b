"""Nodes that join during a run get shards, and idle nodes get inputs of a slow shard."""

import subprocess

import pytest
from harness.comparison import committed, contents, faults
from harness.gated import INPUTS, command, executions, places
from harness.live import flow_run_of, wait_for
from harness.ray_cluster import hiding


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


WITHOUT_BATCHMILL = "raise ModuleNotFoundError('batchmill')"


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ("inputs", "the input "),
        pytest.param("batchmill", "batchmill is not installed there", marks=pytest.mark.long),
        pytest.param("dataset", "is missing, or is a different one", marks=pytest.mark.long),
    ],
)
def test_a_late_node_that_cannot_run_shards_gets_none(
    shell, api, cluster, node, undisturbed, work, tmp_path, lacks, why
):
    first = node()
    (work / "data").mkdir()
    options = ["--ray", cluster.client_address, "--retries", "0"]
    gate = work / "go"
    run = shell.start(*command(work, "data/out", *options, go=gate, first=10))
    wait_for(lambda: places(work, "data/out"), "executions on the first node", 120)
    if lacks == "batchmill":
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "batchmill.py").write_text(WITHOUT_BATCHMILL)
        node(environment={"PYTHONPATH": str(tmp_path / "none")})
    else:
        node(wrapper=hiding(work / ("in" if lacks == "inputs" else "data")))
    flow_run, _ = flow_run_of(api, work / "data" / "out")
    of_run = {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}, "limit": 200}

    def logged():
        lines = [log["message"] for log in api("/logs/filter", of_run)]
        return [line for line in lines if "gets no shards" in line and why in line]

    wait_for(logged, "the reason in the log", 120)
    gate.touch()
    assert run.wait(180) == 0
    assert places(work, "data/out") == {first.place}
    assert contents(work / "data" / "out") == contents(undisturbed)


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
