"""Machines, the network and servers fail: the run continues, or ends with a message."""

import signal
import subprocess
from contextlib import suppress

import psutil
import pytest
from harness.comparison import committed, contents, faults
from harness.gated import INPUTS, command, executions, places
from harness.live import ask, flow_run_of, free_ports, prefect_server_in, wait_for
from harness.ray_cluster import ray_cluster

FINAL = {"COMPLETED", "CRASHED", "FAILED", "CANCELLED"}
# The number of inputs that do not wait.
FIRST = 30


@pytest.fixture
def run(shell, cluster, node, undisturbed, work):
    """A run that has executed inputs on two nodes, and its nodes. The other inputs wait."""
    nodes = [node(), node()]
    options = ["--ray", cluster.client_address]
    started = start(shell, work, options)
    return started, nodes


def job(work, *options, **params):
    return command(work, "out", *options, **{"go": work / "go", "first": FIRST} | params)


def start(shell, work, options, **params):
    command = job(work, *options, **params)
    started = shell.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def both_nodes_are_used():
        assert started.poll() is None, started.communicate()
        return len(places(work, "out")) == 2

    # On a busy machine, the first execution begins after more than two minutes.
    wait_for(both_nodes_are_used, "executions on both nodes", 300)
    wait_for(lambda: len(committed(work / "out")) >= 4, "some commits", 120)
    return started


def finish(started, work, undisturbed, api, seconds=240):
    """Let the run end, and check its dataset and states. Return its crashed task runs."""
    before = committed(work / "out")
    at = len(executions(work, "out"))
    (work / "go").touch()
    out, err = started.communicate(timeout=seconds)
    assert started.returncode == 0, err
    assert f"{INPUTS} inputs: {INPUTS} ok" in out
    again = {name for name, _ in executions(work, "out")[at:]}
    assert not before & again
    assert contents(work / "out") == contents(undisturbed)
    assert faults(work / "out") == []
    flow_run, task_runs = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "COMPLETED"
    states = [task_run["state"]["type"] for task_run in task_runs]
    assert set(states) <= FINAL
    return [task_run for task_run in task_runs if task_run["state"]["type"] == "CRASHED"]


def complete(shell, work, *options):
    """Run the same command again, and check that no committed input is executed again."""
    before = committed(work / "out")
    at = len(executions(work, "out"))
    done = shell.run(*job(work, *options))
    assert done.returncode == 0, done.stderr
    assert not before & {name for name, _ in executions(work, "out")[at:]}


def test_a_node_is_lost(run, work, undisturbed, api):
    started, (lost, _) = run
    lost.kill("raylet/raylet")
    wait_for(lambda: not lost.processes("ray::run_shard"), "the end of its shards", 60)
    crashed = finish(started, work, undisturbed, api)
    assert crashed
    assert all(task_run["state"]["message"] for task_run in crashed)


@pytest.mark.long
def test_nodes_that_are_lost_one_after_the_other_are_no_fault_of_an_input(
    shell, cluster, node, undisturbed, work, api
):
    nodes = [node(), node()]
    started = start(shell, work, ["--ray", cluster.client_address, "--retries", "0"])
    for _ in range(3):
        nodes.pop(0).kill("raylet/raylet")
        nodes.append(node())
        at_new = nodes[-1].place
        wait_for(lambda at=at_new: at in places(work, "out"), "executions on a new node", 300)
    assert len(finish(started, work, undisturbed, api)) >= 3


@pytest.mark.long
def test_a_node_does_not_respond_for_a_minute(run, work, undisturbed, api):
    started, (silent, _) = run
    silent.kill("raylet/raylet", signal.SIGSTOP)
    (work / "go").touch()
    with suppress(subprocess.TimeoutExpired):
        started.wait(60)
    silent.kill("raylet/raylet", signal.SIGCONT)
    finish(started, work, undisturbed, api)


@pytest.mark.long
def test_a_node_is_disconnected(run, work, undisturbed, api, cluster):
    started, (cut, _) = run
    cluster.disconnect(cut)
    finish(started, work, undisturbed, api)
    # Late results from the disconnected node are ignored.
    cluster.reconnect(cut)
    wait_for(lambda: not cut.processes("ray::run_shard"), "the end of its shards", 120)
    assert contents(work / "out") == contents(undisturbed)
    assert faults(work / "out") == []


@pytest.mark.long
def test_a_node_is_disconnected_after_its_shard_was_split(
    shell, cluster, node, work, undisturbed, api
):
    nodes = [node(), node()]
    options = ["--ray", cluster.client_address]
    started = start(shell, work, options, first=10, last=10)
    wait_for(lambda: len(committed(work / "out")) == INPUTS - 1, "all other inputs", 120)
    waiting = dict(executions(work, "out"))["10.txt"]
    (cut,) = [one for one in nodes if one.place == waiting]
    cluster.disconnect(cut)

    def is_retried():
        return [name for name, _ in executions(work, "out")].count("10.txt") == 2

    wait_for(is_retried, "a retry", 120)
    crashed = finish(started, work, undisturbed, api)
    assert [task_run["state"]["message"] for task_run in crashed] == ["its node was lost"]


@pytest.mark.long
def test_the_head_is_lost(shell, work, undisturbed, ray_environment, api):
    with ray_cluster(ray_environment) as cluster:
        cluster.start_head()
        for _ in range(2):
            cluster.add_node()
        started = start(shell, work, ["--ray", cluster.address])
        cluster.head.kill("gcs_server")
        (work / "go").touch()
        _, err = started.communicate(timeout=240)
        assert started.returncode == 1
        assert f"The head of the Ray cluster at {cluster.address} stopped responding" in err
        assert "the same command" in err
        assert "Traceback" not in err
    flow_run, task_runs = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "FAILED"
    assert "The head of the Ray cluster" in flow_run["state"]["message"]
    assert {task_run["state"]["type"] for task_run in task_runs} <= FINAL
    with ray_cluster(ray_environment) as cluster:
        cluster.start_head(num_cpus=1)
        complete(shell, work, "--ray", cluster.address)
    assert contents(work / "out") == contents(undisturbed)
    assert faults(work / "out") == []


@pytest.mark.long
def test_the_head_is_silent(shell, work, ray_environment, api):
    with ray_cluster(ray_environment) as cluster:
        cluster.start_head()
        for _ in range(2):
            cluster.add_node()
        started = start(shell, work, ["--ray", cluster.address])
        cluster.head.kill("gcs_server", signal.SIGSTOP)
        (work / "go").touch()
        try:
            _, err = started.communicate(timeout=120)
        finally:
            cluster.head.kill("gcs_server", signal.SIGCONT)
        assert started.returncode == 1
        assert f"The head of the Ray cluster at {cluster.address} stopped responding" in err
    flow_run, task_runs = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "FAILED"
    assert {task_run["state"]["type"] for task_run in task_runs} <= FINAL


def kill_server(port):
    options = ["server", "start", str(port)]
    servers = [
        p for p in psutil.process_iter(["cmdline"]) if {*options} <= {*(p.info["cmdline"] or ())}
    ]
    assert servers
    for process in servers:
        process.kill()


@pytest.mark.long
def test_the_prefect_server_is_down_for_half_a_minute(
    shell, cluster, node, undisturbed, work, tmp_path
):
    for _ in range(2):
        node()
    host = cluster.network.address
    (port,) = free_ports(host)
    with prefect_server_in(tmp_path / "server", host, port) as url:
        shell.environment["PREFECT_API_URL"] = url
        started = start(shell, work, ["--ray", cluster.client_address])
        kill_server(port)
    # The run continues without the server.
    (work / "go").touch()
    wait_for(lambda: len(committed(work / "out")) == INPUTS, "all commits", 60)
    with suppress(subprocess.TimeoutExpired):
        started.wait(30)
    with prefect_server_in(tmp_path / "server", host, port) as url:
        finish(started, work, undisturbed, lambda *arguments: ask(url, *arguments))


@pytest.mark.parametrize("way", ["SIGTERM", "prefect flow-run cancel"])
@pytest.mark.long
def test_cancelling_ends_the_runs_processes_on_all_nodes(
    run, work, undisturbed, api, shell, cluster, way
):
    started, nodes = run
    if way == "SIGTERM":
        started.send_signal(signal.SIGTERM)
    else:
        flow_run, _ = flow_run_of(api, work / "out")
        done = shell.run(*way.split(), flow_run["id"])
        assert done.returncode == 0, done.stderr
    at_work = [process for node in nodes for process in node.processes("ray::run_shard")]
    wait_for(
        lambda: not any(process.is_running() for process in at_work), "the end of all shards", 10
    )
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "Cancelled. Committed results are kept" in err
    flow_run, task_runs = flow_run_of(api, work / "out")
    assert flow_run["state"]["type"] == "CANCELLED"
    assert {task_run["state"]["type"] for task_run in task_runs} <= FINAL
    (work / "go").touch()
    complete(shell, work, "--ray", cluster.client_address)
    assert contents(work / "out") == contents(undisturbed)
