"""Keeps shards off nodes that join during a run, until they have passed the probe."""

from collections.abc import Sequence

from prefect.logging import get_run_logger

from batchmill.orchestration.cluster.capacity import Node
from batchmill.orchestration.cluster.probe import NodeProbes


class LateNodes:
    """The nodes that may not get shards.

    Ray may give a shard that it has queued to a new node at once. So the shard itself also checks
    its node, and `leave_out` gets the result.

    Args:
        probes: Runs the probes.
        known: The nodes that were checked before the first shard.
    """

    def __init__(self, probes: NodeProbes, known: Sequence[Node]) -> None:
        self._probes = probes
        self._known = {node.id for node in known}
        self._unfit: set[str] = set()

    @property
    def excluded(self) -> Sequence[str]:
        """The ids of the nodes that have not passed the probe."""
        return sorted(self._unfit | {node.id for node in self._probes.waiting})

    def usable(self, found: Sequence[Node]) -> list[Node]:
        """Probe the nodes that are new, and return the nodes that may get shards.

        Args:
            found: The living nodes of the cluster.
        """
        for node in found:
            if node.id not in self._known:
                self._known.add(node.id)
                self._probes.start(node)
        for node, faults in self._probes.collect(seconds=0):
            if faults:
                self.leave_out(node.id, f"on {node.address}: {' '.join(faults)}")
        excluded = self.excluded
        return [node for node in found if node.id not in excluded]

    def leave_out(self, node: str, reason: str) -> None:
        """Stop giving shards to a node. Log the reason once."""
        if node not in self._unfit:
            self._unfit.add(node)
            get_run_logger().error("a node of the Ray cluster gets no shards. %s", reason)
