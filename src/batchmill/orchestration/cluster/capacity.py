"""Compute how many shards the nodes of a Ray cluster can run at a time."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from batchmill.blocks.ray_cluster import RayCluster
from batchmill.core.planning.batching import Cores
from batchmill.errors import OptionError
from batchmill.orchestration.cluster.nodes import Node

# Ray labels each node with its id.
_NODE_LABEL = "ray.io/node-id"


def with_gpu(cluster: RayCluster, found: list[Node]) -> RayCluster:
    """Return a cluster whose shards request a GPU each, if it has GPUs and sets no number."""
    if cluster.num_gpus is None and any(node.resources.get("GPU") for node in found):
        return cluster.model_copy(update={"num_gpus": 1})
    return cluster


def cores_for(cluster: RayCluster, found: list[Node]) -> Cores:
    """Return the cores of a cluster's nodes, and how many shards the nodes can run at a time."""
    cores = [int(node.resources.get("CPU", 0)) for node in found]
    return Cores(
        total=max(1, sum(cores)),
        node=max([1, *cores]),
        may_grow=not cluster.is_local,
        slots=partial(_slots, cluster, found),
    )


def shard_needs(cluster: RayCluster, found: list[Node], workers: int) -> dict[str, float]:
    """Return the resources that a shard needs. The largest node limits the number of CPUs."""
    most = max([1, *(int(node.resources.get("CPU", 0)) for node in found)])
    return cluster.needs(min(workers, most))


def count_slots(found: list[Node], needs: Mapping[str, float]) -> int:
    """Return how many shards with these needs the nodes can run at a time."""
    return sum(node.room_for(needs) for node in found)


def _slots(cluster: RayCluster, living: list[Node], workers: int) -> int:
    """Return how many shards can run at a time. Raise OptionError if no node can run a shard."""
    needs = shard_needs(cluster, living, workers)
    slots = count_slots(living, needs)
    if slots:
        return slots
    asked = ", ".join(f"{name}={amount:g}" for name, amount in needs.items())
    have = "; ".join(
        f"{node.address}: " + ", ".join(f"{name}={node.resources.get(name, 0):g}" for name in needs)
        for node in living
    )
    raise OptionError(
        f"No node of the Ray cluster can run a shard: a shard needs {asked}. Available: "
        f"{have}. Reduce the needs (--shard-resource, --num-workers), or start a larger node."
    )


def remote_options_of(needs: Mapping[str, float], excluded: Collection[str] = ()) -> dict[str, Any]:
    """Return the options of a Ray task that runs a shard with these needs.

    Args:
        needs: The amount of each resource.
        excluded: The ids of the nodes on which the task may not run.
    """
    options = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    others = {name: amount for name, amount in needs.items() if name not in options}
    return {
        **{option: needs[name] for name, option in options.items() if name in needs},
        **({"resources": others} if others else {}),
        **({"label_selector": {_NODE_LABEL: f"!in({','.join(excluded)})"}} if excluded else {}),
        # Prefect would not see a shard that Ray retries.
        "max_retries": 0,
    }
