"""Compute how many shards a Ray cluster can run at a time, while nodes join and leave."""

import socket
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple, cast

import ray

from batchmill.blocks.ray_cluster import RayCluster, endpoint
from batchmill.core.planning.batching import Cores
from batchmill.errors import OptionError, RunError

# Ray kills a driver after its head has been down for a minute, so the run must end earlier. Until
# then, each process of the cluster uses a whole core to look for the head.
_HEAD_SECONDS, _HEAD_ANSWER_SECONDS = 15.0, 2.0

# Ray labels each node with its id.
_NODE_LABEL = "ray.io/node-id"

_RESUME = "Committed results are kept. Run the same command again to complete the dataset."


class Node(NamedTuple):
    """A node of the cluster, with its id, its address and the amount of each resource."""

    id: str
    address: str
    resources: Mapping[str, float]

    def room_for(self, needs: Mapping[str, float]) -> int:
        """Return how many shards with these needs the node can run at a time.

        >>> Node("1", "10.0.0.1", {"GPU": 1.0}).room_for({"GPU": 0.1})
        10
        """
        # As floats, ten times 0.1 are more than 1. Ray counts in steps of 0.0001.
        return min(
            round(1e4 * self.resources.get(name, 0)) // round(1e4 * amount)
            for name, amount in needs.items()
        )


def nodes() -> list[Node]:
    """Return the living nodes of the connected cluster."""
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in cast("Any", ray).nodes()
        if node["Alive"]
    ]


class LivingNodes:
    """Finds the nodes of a cluster, while nodes join and leave.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        # A local Ray has a head too. If its head has died, calls to Ray never return.
        is_client = cluster.address.startswith("ray://")
        address = cluster.address if is_client else ray.get_runtime_context().gcs_address
        self._head = endpoint(address)
        self._request: Future[list[Node]] | None = None
        self._silent_since: float | None = None

    def __call__(self) -> list[Node] | None:
        """Return the living nodes. None while the cluster's head does not respond.

        Other calls to Ray block during that time.

        Raises:
            RunError: The head has not responded for 15 seconds. Ray itself would kill this process
                later, without a message.
        """
        living = self._ask() if self._answers() else None
        if living is not None:
            self._silent_since = None
            return living
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if now - self._silent_since > _HEAD_SECONDS:
            raise RunError(lost_head_message(self._cluster))
        return None

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._head, timeout=_HEAD_ANSWER_SECONDS).close()
        except OSError:
            return False
        return True

    def _ask(self) -> list[Node] | None:
        """Return the nodes. None if the response takes long. The next call then waits for it."""
        if self._request is None:
            self._request = Future()
            # In a thread, because the request blocks if the head does not respond.
            threading.Thread(target=_ask_for_nodes, args=[self._request], daemon=True).start()
        if not wait([self._request], _HEAD_ANSWER_SECONDS).done:
            return None
        request, self._request = self._request, None
        return request.result()


def _ask_for_nodes(answer: Future[list[Node]]) -> None:
    try:
        answer.set_result(nodes())
    except BaseException as error:  # noqa: BLE001  # `result` raises it in the calling thread.
        answer.set_exception(error)


def lost_head_message(cluster: RayCluster) -> str:
    """Return the message for a cluster's head that was lost during a run."""
    if cluster.is_local:
        return f"Ray on the machine of the flow run has died. {_RESUME}"
    return f"The head of the Ray cluster at {cluster.address} stopped responding. {_RESUME}"


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
