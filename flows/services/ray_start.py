"""How a private Ray is started: with fewer processes than Ray has of itself, and no pauses."""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

SYSTEM_CONFIG = {
    # Its parts wait for each other's sockets, and look again after a second; here, after 50 ms.
    "raylet_client_connect_timeout_milliseconds": 50,
    "raylet_client_num_connect_attempts": 400,
    # Or it starts a worker for each core, before it is known how many shards there are.
    "enable_worker_prestart": False,
    "prestart_worker_first_driver": False,
}
_LOOK_SECONDS = 0.05
_NODE_SECONDS = 10
_MINIMAL = ImportError("a private Ray has no dashboard")


@contextmanager
def quick_start(*, logs: bool) -> Iterator[None]:
    """Have `ray.init`, within the block, start no more than tasks on one machine need.

    `ray.init` has no settings for this, though what it calls has. Without: the autoscaler, which
    delays the end by a second; the dashboard's server, of which `include_dashboard=False` leaves an
    empty one, waited for; what only a dashboard asks of its agents; and the reader of workers'
    output, unless `logs` is to have it. It takes half the time to start, and a fourth to end.

    The processes get process groups of their own, as Ray gives them on Windows. Who ends the
    process group of a run, as Prefect's worker does to cancel it, ends the run alone; that ends
    Ray, when its shards have come to an end. Should the run be killed, Ray follows.
    """
    frugal = {"no_monitor": True, "include_log_monitor": logs}
    with ExitStack() as stack:
        for module, name, change in (
            ("services", "ConsolePopen", lambda popen: partial(popen, process_group=0)),
            ("services", "start_api_server", lambda _: _start_no_api_server),
            ("services", "get_node", lambda get_node: partial(_get_node, get_node)),
            ("utils", "get_dashboard_dependency_error", lambda _: lambda: _MINIMAL),
            ("parameter", "RayParams", lambda params: partial(params, **frugal)),
        ):
            stack.enter_context(_changed(f"ray._private.{module}", name, change))
        yield


@contextmanager
def _changed(module: str, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Have a name of a module stand for something else; what is not there stays away."""
    where = importlib.import_module(module)
    before = getattr(where, name, None)
    if before is None:
        yield  # Another Ray, which starts without this change, too.
        return
    setattr(where, name, change(before))
    try:
        yield
    finally:
        setattr(where, name, before)


def _start_no_api_server(*_: Any, **__: Any) -> tuple[None, None]:
    """Return what Ray's own function returns where it could not start one: no address, none."""
    return None, None


def _get_node(get_node: Callable[[str, str], Any], gcs_address: str, node_id: str) -> Any:
    """Wait for a node to be there before Ray asks for it, which looks again once a second."""
    raylet: Any = importlib.import_module("ray._raylet")
    client = raylet.GcsClient(address=gcs_address)
    deadline = time.monotonic() + _NODE_SECONDS
    while time.monotonic() < deadline:
        if any(node.hex() == node_id for node in client.get_all_node_info(timeout=_NODE_SECONDS)):
            break
        time.sleep(_LOOK_SECONDS)
    return get_node(gcs_address, node_id)
