"""The number of shards that a cluster can run, and what each requests of Ray."""

import pytest
from batchmill.blocks.ray_cluster import RayCluster

from batchmill.orchestration.cluster.capacity import cores_for, remote_options_of, with_gpu
from batchmill.orchestration.cluster.nodes import Node


@pytest.mark.parametrize(("address", "may_grow"), [("local", False), ("10.0.0.1:6379", True)])
def test_a_local_ray_does_not_grow(address, may_grow):
    found = [Node("a", "10.0.0.1", {"CPU": 4.0})]
    assert cores_for(RayCluster(address=address), found).may_grow is may_grow


def test_a_task_does_not_run_on_excluded_nodes():
    assert "label_selector" not in remote_options_of({"CPU": 2})
    options = remote_options_of({"CPU": 2}, ["a", "b"])
    assert options["label_selector"] == {"ray.io/node-id": "!in(a,b)"}


@pytest.mark.parametrize(
    ("num_gpus", "gpus", "requested"), [(None, 2, 1), (None, 0, 0), (0, 2, 0), (0.5, 2, 0.5)]
)
def test_a_shard_that_can_use_a_gpu_requests_one_if_the_cluster_has_one(num_gpus, gpus, requested):
    found = [Node("a", "10.0.0.1", {"CPU": 4.0}), Node("b", "10.0.0.2", {"CPU": 4.0, "GPU": gpus})]
    cluster = with_gpu(RayCluster(address="auto", num_gpus=num_gpus), found)
    assert cluster.needs(1).get("GPU", 0) == requested
    assert cores_for(cluster, found).slots_for(1) == (gpus // requested if requested else 8)
