"""Runs on a cluster with each form of address make the same dataset."""

import os
import re
import shutil
import sys

import pandas as pd
import pytest
from harness.comparison import contents, faults
from harness.gated import INPUTS, command, executions, places
from harness.live import STEP_MODULES, flow_run_of, wait_for
from harness.ray_cluster import ray_cluster

SAVE = """
import sys
from batchmill.blocks.ray_cluster import RayCluster
RayCluster(address=sys.argv[1], token=sys.argv[2]).save("ours", overwrite=True)
"""


def test_each_form_of_address_makes_the_same_dataset(shell, api, cluster, node, undisturbed, work):
    node()
    node()
    addresses = {"client": cluster.client_address, "direct": cluster.address, "auto": "auto"}
    shell.environment["RAY_ADDRESS"] = cluster.address
    for name, address in addresses.items():
        gate = work / f"{name}.go"
        run = shell.start(*command(work, name, "--ray", address, go=gate))
        wait_for(lambda n=name: len(places(work, n)) == 2, "executions on two machines", 120)
        gate.touch()
        assert run.wait(120) == 0
        assert os.readlink("/proc/self/ns/net") not in places(work, name)
        assert len(executions(work, name)) == INPUTS
        assert contents(work / name) == contents(undisturbed)
        assert faults(work / name) == []
        flow_run, task_runs = flow_run_of(api, work / name)
        assert {run["state"]["type"] for run in [flow_run, *task_runs]} == {"COMPLETED"}


@pytest.mark.long
def test_a_shard_runs_on_a_node_with_its_resource(shell, cluster, node, undisturbed, work):
    node()
    node(scanner=1)
    options = ["--ray", cluster.client_address, "--shard-resource", "scanner=1"]
    done = shell.run(*command(work, "out", *options))
    assert done.returncode == 0, done.stderr
    assert len(places(work, "out")) == 1
    assert contents(work / "out") == contents(undisturbed)
    done = shell.run(*command(work, "no", *options, "--shard-resource", "num_gpus=2"))
    assert done.returncode == 2
    assert "No node of the Ray cluster can run a shard: a shard needs CPU=1, GPU=2" in done.stderr


@pytest.mark.long
def test_a_run_logs_its_failures_and_a_shard_its_counts(shell, api, cluster, node, work):
    node()
    (work / "in" / "07.txt").write_bytes(b"\xff")
    done = shell.run(*command(work, "out", "--ray", cluster.client_address))
    assert done.returncode == 1, done.stderr
    flow_run, task_runs = flow_run_of(api, work / "out")
    shards = {run["id"]: run for run in task_runs if run["name"].startswith("shard ")}
    titles = [re.fullmatch(r"shard \d+/\d+, (\d+) inputs", run["name"]) for run in shards.values()]
    assert sum(int(title[1]) for title in titles) == INPUTS
    of_run = {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}, "limit": 200}
    logs = [(log["task_run_id"], log["message"]) for log in api("/logs/filter", of_run)]
    (message,) = [text for run, text in logs if run is None and text.startswith("07.txt: ")]
    assert "UnicodeDecodeError" in message
    counts = {run: text for run, text in logs if re.match(r"\d+ ok", text)}
    assert counts.keys() == shards.keys()
    assert sum("1 failed" in text for text in counts.values()) == 1


@pytest.mark.parametrize(
    "address", ["client_address", pytest.param("address", marks=pytest.mark.long)]
)
def test_a_cluster_that_requires_a_token(shell, undisturbed, work, address):
    secret = "f00ba4" * 8
    closed = shell.environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret}
    with ray_cluster(closed) as cluster:
        cluster.start_head(num_cpus=1)
        where = getattr(cluster, address)
        done = shell.run(*command(work, "out", "--ray", where))
        assert done.returncode == 2
        assert "If the cluster requires a token, set RAY_AUTH_TOKEN" in done.stderr
        assert "Traceback" not in done.stderr
        saved = shell.run(sys.executable, "-c", SAVE, where, secret)
        assert saved.returncode == 0, saved.stderr
        done = shell.run(*command(work, "out", "--ray", "block:ours"))
        assert done.returncode == 0, done.stderr
        shell.environment["RAY_AUTH_TOKEN"] = secret
        done = shell.run(*command(work, "again", "--ray", where))
        assert done.returncode == 0, done.stderr
    for name in ("out", "again"):
        assert contents(work / name) == contents(undisturbed)
    assert not [
        path for path in work.rglob("*") if path.is_file() and secret in path.read_text("latin-1")
    ]


@pytest.mark.long
def test_each_shard_of_a_model_has_a_gpu_if_the_cluster_has_some(shell, cluster, node, work):
    """Ray believes that the machine has two GPUs, and gives each shard one."""
    node(num_cpus=2, num_gpus=2)
    shutil.copy(STEP_MODULES / "which_gpu.py", work)
    options = ["--batch-size", "1", "--num-workers", "1", "--ray", cluster.client_address]
    for name, used in {"auto": {"0", "1"}, "cpu": {"all"}}.items():
        step = ["--step", "which_gpu:Which", "--param", f"device={name}"]
        done = shell.batchmill("run", "in", "-o", name, *step, *options)
        assert done.returncode == 0, done.stderr
        assert set(pd.read_parquet(work / name / "metadata.parquet")["gpu"]) == used
