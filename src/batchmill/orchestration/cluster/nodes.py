"""The living nodes of a Ray cluster, and whether its head responds."""

import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, cast

import ray

from batchmill.blocks.ray_cluster import RayCluster, endpoint
from batchmill.errors import RunError
from batchmill.orchestration.cluster.connection import lost_head_message

# Ray kills a driver after its head has been down for a minute, so the run must end earlier. Until
# then, each process of the cluster uses a whole core to look for the head.
_HEAD_SECONDS, _HEAD_ANSWER_SECONDS = 15.0, 2.0


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
