"""What a Ray cluster has, and a shard asks for: how many run at a time, as nodes come and go."""

import socket
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import ray
from batchmill.blocks.ray_cluster import RayCluster, endpoint

from batchmill.errors import OptionError, RunError
from batchmill.planning.batching import Cores

# Ray ends a driver whose head is gone for a minute, in which all is to be told; and all that time
# each process of the cluster keeps a core busy with asking for it.
_HEAD_SECONDS, _HEAD_ANSWER_SECONDS = 15.0, 2.0

_RESUME = "Committed results are kept. Run the same command again to complete the dataset."


class Node(NamedTuple):
    """A node of the cluster: its id, its address, and what it has of each resource."""

    id: str
    address: str
    resources: Mapping[str, float]

    def room_for(self, needs: Mapping[str, float]) -> int:
        """Return how many shards with such needs it runs at a time."""
        return min(int(self.resources.get(name, 0) // amount) for name, amount in needs.items())


def nodes() -> list[Node]:
    """List the living nodes of the connected cluster."""
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in cast("Any", ray).nodes()
        if node["Alive"]
    ]


class Capacity:
    """How many shards with such needs a cluster runs at a time, as its nodes come and go.

    `alive` are the ids of those that were there at the last count; `is_elastic` tells whether
    others may come.
    """

    def __init__(self, cluster: RayCluster, needs: Mapping[str, float]) -> None:
        self._cluster = cluster
        self._needs = needs
        self._head = _head_address(cluster)
        self._question: _Question | None = None
        self._silent_since: float | None = None
        self.alive: frozenset[str] = frozenset()
        self.is_elastic = not cluster.is_local

    def __call__(self) -> int | None:
        """Count; None while the cluster's head is silent: whoever asks it for something waits.

        Raises RunError when that takes long. Ray itself would end this process then, without a
        word.
        """
        found = self._ask() if self._answers() else None
        if found is not None:
            self._silent_since = None
            self.alive = frozenset(node.id for node in found)
            return count_slots(found, self._needs)
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if now - self._silent_since > _HEAD_SECONDS:
            raise RunError(lost_head_message(self._cluster))
        return None

    def _answers(self) -> bool:
        if self._head is None:
            return True
        try:
            socket.create_connection(self._head, timeout=_HEAD_ANSWER_SECONDS).close()
        except OSError:
            return False
        return True

    def _ask(self) -> list[Node] | None:
        """Ask for the nodes; None if the answer takes long, and the next call waits for it."""
        self._question = self._question or _Question()
        self._question.join(_HEAD_ANSWER_SECONDS)
        if self._question.is_alive():
            return None
        question, self._question = self._question, None
        return question.answer()


class _Question(threading.Thread):
    """What nodes there are, asked in a thread: Ray waits for its head until it ends us."""

    def __init__(self) -> None:
        super().__init__(name="ask-for-nodes", daemon=True)
        self._found: list[Node] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._found = nodes()
        except BaseException as error:  # noqa: BLE001  # For the thread that asks.
            self._error = error

    def answer(self) -> list[Node]:
        """Return the nodes, or raise what Ray has raised."""
        if self._error:
            raise self._error
        return self._found


def lost_head_message(cluster: RayCluster) -> str:
    """Say that a cluster's head went away in the middle of a run, and what that costs."""
    if cluster.is_local:
        return f"Ray on the machine of the flow run has died. {_RESUME}"
    return f"The head of the Ray cluster at {cluster.address} stopped responding. {_RESUME}"


def _head_address(cluster: RayCluster) -> tuple[str, int] | None:
    """Return where a cluster's head can be asked whether it lives.

    A local Ray has one as well: without it, a question to Ray is never answered.
    """
    if cluster.address.startswith("ray://"):
        return cluster.head
    return endpoint(ray.get_runtime_context().gcs_address)


def cores_for(cluster: RayCluster, found: list[Node]) -> Cores:
    """Count the cores of a cluster's nodes, and the shards that they can run at a time."""
    cores = [int(node.resources.get("CPU", 0)) for node in found]
    return Cores(
        total=max(1, sum(cores)),
        node=max([1, *cores]),
        may_grow=not cluster.is_local,
        slots=partial(_slots, cluster, found),
    )


def shard_needs(cluster: RayCluster, found: list[Node], workers: int) -> dict[str, float]:
    """Return what a shard asks for: of CPUs, no more than the largest node has."""
    most = max([1, *(int(node.resources.get("CPU", 0)) for node in found)])
    return cluster.needs(min(workers, most))


def count_slots(found: list[Node], needs: Mapping[str, float]) -> int:
    """Count the shards with such needs that run at a time."""
    return sum(node.room_for(needs) for node in found)


def _slots(cluster: RayCluster, found: list[Node], workers: int) -> int:
    """Count the shards that run at a time. Raises OptionError if no node can run any."""
    needs = shard_needs(cluster, found, workers)
    slots = count_slots(found, needs)
    if slots:
        return slots
    asked = ", ".join(f"{name}={amount:g}" for name, amount in needs.items())
    have = "; ".join(
        f"{node.address}: " + ", ".join(f"{name}={node.resources.get(name, 0):g}" for name in needs)
        for node in found
    )
    raise OptionError(
        f"No node of the Ray cluster can run a shard: it asks for {asked}, and there is {have}. "
        "Ask for less (--shard-resource, --num-workers), or start a node that has it."
    )


def remote_options_of(needs: Mapping[str, float]) -> dict[str, Any]:
    """Turn a shard's needs into options of a Ray task that Ray does not repeat by itself."""
    own = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    others = {name: amount for name, amount in needs.items() if name not in own}
    return {
        **{option: needs[name] for name, option in own.items() if name in needs},
        **({"resources": others} if others else {}),
        # Ray's own retries would run a shard again behind Prefect's back.
        "max_retries": 0,
    }
