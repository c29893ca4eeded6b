"""The runner for a Ray cluster or a local Ray, based on prefect-ray's task runner."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import ray
from prefect.client.schemas.objects import State
from prefect_ray.context import remote_options
from prefect_ray.task_runners import PrefectRayFuture, RayTaskRunner

from batchmill.blocks.ray_cluster import RayCluster
from batchmill.core.planning.batching import Cores
from batchmill.core.security.credentials import Access
from batchmill.errors import RunError
from batchmill.orchestration.cluster.capacity import (
    cores_for,
    count_slots,
    remote_options_of,
    shard_needs,
    with_gpu,
)
from batchmill.orchestration.cluster.connection import (
    LOST_CONNECTION,
    lost_head_message,
    ray_runner,
)
from batchmill.orchestration.cluster.nodes import LivingNodes, nodes
from batchmill.orchestration.cluster.probe import NodeProbes
from batchmill.orchestration.runners.shard_runner import ShardFuture, ShardRunner
from batchmill.runs.node_check import Probe
from batchmill.runs.shards.shard import Shard
from batchmill.tasks.shard import refusing_node, run_ray_shard

# Ray's name for the end of the raylet that the driver itself is connected to.
_LOCAL_RAY_IS_GONE = "LocalRayletDiedError"


@dataclass
class RayRunner(ShardRunner):
    """Runs each shard as a Prefect task run in a Ray task.

    Args:
        cluster: The Ray cluster, or a local Ray.
        access: The credentials that the shards need.
        held: Keeps the connection to Ray, or the local Ray, until it is closed.
        cancelled: Returns true after the run is cancelled.
        takes_gpu: True if each shard uses a GPU. It requests one if the cluster has GPUs and does
            not set their number.
    """

    lost_message = "Ray on the machine of the flow run has died, so no other shard was submitted."

    cluster: RayCluster
    access: Sequence[Access]
    held: ExitStack
    cancelled: Callable[[], bool]
    takes_gpu: bool
    _probes: NodeProbes | None = None  # A local Ray has only one node.

    def __post_init__(self) -> None:
        self.is_elastic = not self.cluster.is_local
        self._tasks: RayTaskRunner[Any] = self.held.enter_context(ray_runner(self.cluster))
        self._found = nodes()
        if self.takes_gpu:
            self.cluster = with_gpu(self.cluster, self._found)

    @property
    def cores(self) -> Cores:
        """The cores of the cluster's nodes, and how many shards the nodes can run at a time."""
        return cores_for(self.cluster, self._found)

    def prepare(self, num_workers: int, probe: Probe) -> None:
        """Check that each node of a cluster can run a shard. A local Ray is not checked."""
        self._needs = shard_needs(self.cluster, self._found, num_workers)
        self._living = LivingNodes(self.cluster)
        if not self.cluster.is_local:
            self._probes = NodeProbes(probe, self.access)
            self._probes.check_cluster(self._found, self._needs, self.cancelled)

    def slots(self) -> int | None:
        """Return how many shards the nodes can run now. None while the head does not respond."""
        with self._lost_connection_is_lost_head():
            living = self._living()
            if living is None:
                return None
            self.nodes = frozenset(node.id for node in living)
            usable = self._probes.usable(living) if self._probes else living
            self.why_unfit = self._probes.reason if self._probes else ""
        return count_slots(usable, self._needs)

    def submit(self, shard: Shard) -> ShardFuture:
        """Submit a shard to Ray, with the resources that it needs."""
        probes = self._probes
        options = remote_options_of(self._needs, probes.excluded if probes else ())
        probe = probes.probe if probes else None
        parameters = {"shard": shard, "access": self.access, "probe": probe}
        with self._lost_connection_is_lost_head(), remote_options(**options):
            future: ShardFuture = self._tasks.submit(run_ray_shard, parameters)
            return future

    def wait(self, futures: Sequence[ShardFuture], seconds: float) -> Collection[ShardFuture]:
        """Wait until one of the task runs has ended."""
        by_reference = {_reference_of(future): future for future in futures}
        with self._lost_connection_is_lost_head():
            ended, _ = ray.wait(list(by_reference), num_returns=1, timeout=seconds)
        return [by_reference[reference] for reference in ended]

    def kill(self, future: ShardFuture) -> None:
        """Kill the Ray worker of a task run."""
        with self._lost_connection_is_lost_head():
            ray.cancel(_reference_of(future), force=True)

    def is_lost(self, reason: str) -> bool:
        """Return whether the raylet on this machine has died. Ray then accepts no task."""
        return _LOCAL_RAY_IS_GONE in reason

    def leave_out(self, state: State[Any]) -> bool:
        """Stop giving shards to a node that could not run one. Return whether there is one."""
        node, reason = refusing_node(state)
        if self._probes and node:
            self._probes.leave_out(node, reason)
        return bool(node)

    @contextmanager
    def _lost_connection_is_lost_head(self) -> Iterator[None]:
        try:
            yield
        except LOST_CONNECTION as error:
            raise RunError(lost_head_message(self.cluster)) from error


def _reference_of(future: ShardFuture) -> Any:
    return cast("PrefectRayFuture[Any]", future).wrapped_future
