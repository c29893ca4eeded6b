"""Checks that the nodes of a Ray cluster can run the shards of a run."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import ray
from prefect.context import SettingsContext, get_settings_context
from prefect.logging import get_run_logger
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from batchmill.core.security.credentials import Access, access_to
from batchmill.errors import ServiceError
from batchmill.orchestration.cluster.connection import short_reason
from batchmill.orchestration.cluster.nodes import Node
from batchmill.orchestration.server.api import client_without_retries, shown_api
from batchmill.runs.node_check import Probe, faults_here
from batchmill.version import VERSION

# Ray may have to set up a runtime environment first. The installation of packages takes minutes.
_ANSWER_SECONDS = 600.0
_WAIT_SECONDS = 0.5
# A node that cannot run shards is checked again after this time. The server may have been away.
_AGAIN_SECONDS = 30.0
# The number of nodes that are checked. A check of thousands of nodes would take too long.
_MOST_NODES = 64


class NodeProbes:
    """Probes the nodes of the connected cluster, and excludes those that cannot run shards.

    Ray may give a shard that it has queued to a new node at once. So the shard itself also checks
    its node, and `leave_out` gets the result.

    Args:
        probe: The checks to run on each node.
        access: The credentials that the shards need.

    Attributes:
        reason: Why the last node that was left out cannot run shards. Empty without one.
    """

    reason = ""

    def __init__(self, probe: Probe, access: Sequence[Access]) -> None:
        self.probe = probe
        self._remote: Any = cast("Any", ray).remote(num_cpus=0, max_retries=0)(_portable_probe())
        settings = get_settings_context().serialize()
        stores = [asdict(store) for store in access]
        self._arguments = (VERSION, asdict(probe), stores, settings)
        # The nodes whose probe has not ended.
        self._asked: dict[Any, Node] = {}
        self._known: set[str] = set()
        # The nodes that cannot run shards, and when they are checked again.
        self._unfit: dict[str, float] = {}

    @property
    def excluded(self) -> Sequence[str]:
        """The ids of the nodes that have not passed the probe."""
        return sorted({*self._unfit, *(node.id for node in self._asked.values())})

    def check_cluster(
        self, found: Sequence[Node], needs: Mapping[str, float], cancelled: Callable[[], bool]
    ) -> None:
        """Run one probe on each node that has the resources for a shard, before the first shard.

        Args:
            found: The nodes of the cluster.
            needs: The resources that a shard needs.
            cancelled: Returns true after the run is cancelled. Then the probes are not awaited.

        Raises:
            ServiceError: Nodes cannot run shards. The message has one line for each fault.
        """
        self._known = {node.id for node in found}
        for node in [node for node in found if node.room_for(needs)][:_MOST_NODES]:
            self._start(node)
        where: dict[str, list[str]] = defaultdict(list)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while self._asked and time.monotonic() < deadline:
            # The waits are short, because Python runs no signal handler while Ray waits.
            for node, faults in self._collect(_WAIT_SECONDS):
                for fault in faults:
                    where[fault].append(node.address)
            if cancelled():
                return
        for node in self._asked.values():
            where[f"no response within {_ANSWER_SECONDS:.0f} s."].append(node.address)
        if where:
            lines = [f"  on {', '.join(places)}: {fault}" for fault, places in where.items()]
            raise ServiceError("\n".join(["The Ray cluster cannot run this:", *lines]))

    def usable(self, found: Sequence[Node]) -> list[Node]:
        """Probe the nodes that are new or unfit, and return the nodes that may get shards.

        Args:
            found: The living nodes of the cluster.
        """
        now = time.monotonic()
        for node in found:
            if node.id not in self._known or self._unfit.get(node.id, now + 1) <= now:
                self._known.add(node.id)
                self._unfit.pop(node.id, None)
                self._start(node)
        for node, faults in self._collect(seconds=0) if self._asked else ():
            if faults:
                self.leave_out(node.id, f"on {node.address}: {' '.join(faults)}")
        excluded = self.excluded
        return [node for node in found if node.id not in excluded]

    def leave_out(self, node: str, reason: str) -> None:
        """Give no shards to a node until it passes the probe. Log each reason once."""
        self._unfit[node] = time.monotonic() + _AGAIN_SECONDS
        if reason != self.reason:
            get_run_logger().error("a node of the Ray cluster gets no shards. %s", reason)
        self.reason = reason

    def _start(self, node: Node) -> None:
        only_there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = {"name": "batchmill probe", "scheduling_strategy": only_there}
        self._asked[self._remote.options(**options).remote(*self._arguments)] = node

    def _collect(self, seconds: float) -> list[tuple[Node, list[str]]]:
        """Return the nodes whose probe has ended, with the reasons why they cannot run shards."""
        references = list(self._asked)
        ended, _ = ray.wait(references, num_returns=len(references), timeout=seconds)
        return [(self._asked.pop(reference), _answer(reference)) for reference in ended]


def _answer(reference: Any) -> list[str]:
    try:
        faults: list[str] = ray.get(reference)
    except ray.exceptions.RuntimeEnvSetupError as error:
        return [f"its runtime environment cannot be set up: {short_reason(error)}"]
    except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError):
        return []  # The node has left the cluster, so it will run no shard.
    except ray.exceptions.RayError as error:
        return [f"the probe failed: {short_reason(error)}"]
    return faults


def _portable_probe() -> Callable[..., list[str]]:
    """Return a function that returns why the node that executes it cannot run shards.

    Ray pickles the function by value. The node may have no batchmill, or another version.
    """

    def probe(
        version: str, about: dict[str, Any], access: list[Any], settings: dict[str, Any]
    ) -> list[str]:
        import sys

        try:
            from batchmill.version import VERSION as installed  # noqa: N811
        except ImportError:
            where = f"for {sys.executable}"
            remedy = f"Install the same version as here: batchmill {version}."
            return [f"batchmill is not installed there ({where}). {remedy}"]
        if installed != version:
            versions = f"batchmill is {installed} there, and {version} here"
            return [f"{versions}. Install the same version on all nodes."]
        from batchmill.orchestration.cluster.probe import faults_on_this_node

        return faults_on_this_node(about, access, settings)

    return probe


def faults_on_this_node(
    about: Mapping[str, Any], access: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> list[str]:
    """Return why this machine cannot run shards.

    Args:
        about: The fields of a `Probe`.
        access: The fields of each `Access` that the shards need.
        settings: The serialized settings of Prefect.

    Returns:
        One text for each fault. Empty if the machine can run shards.
    """
    with access_to([Access(**store) for store in access]):
        faults = [*faults_here(Probe(**about)), _api_fault(settings)]
    return [fault for fault in faults if fault]


def _api_fault(settings: Mapping[str, Any]) -> str:
    """Return why this machine cannot use the Prefect API of these settings. Empty if it can."""
    with SettingsContext(**settings), client_without_retries() as client:
        url = shown_api()
        trouble = client.api_healthcheck()
    if not trouble:
        return ""
    return (
        f"the Prefect API at {url} does not respond there ({trouble}). Start a server that all "
        "nodes can reach (prefect server start --host 0.0.0.0), and set PREFECT_API_URL to its "
        "address. An address such as 127.0.0.1 works only on one machine."
    )
