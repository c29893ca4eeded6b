"""Connect to a Ray cluster, or start a local Ray. Before, check that Ray responds at the address.

Without the check, Ray would try for minutes. Most of that time it does not return to Python, so no
signal ends it.
"""

import atexit
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, cast

import grpc
import ray
from prefect_ray import RayTaskRunner
from ray.runtime_env import RuntimeEnv

from batchmill.blocks.ray_cluster import AUTO, RayCluster, endpoint
from batchmill.errors import BatchmillError, OptionError, ServiceError
from batchmill.orchestration.interrupts import is_blocked

logger = logging.getLogger(__name__)

# Ray Client raises these errors when its connection is lost or its server process has died.
LOST_CONNECTION = (ConnectionError, grpc.RpcError)
_RESUME = "Committed results are kept. Run the same command again to complete the dataset."
_SHOWN = 300
_CONNECT_SECONDS = 10
_SHUTDOWN_SECONDS = 10
# A busy machine needs five seconds to connect.
_AUTO_SECONDS = 30
# The alarm ends the process even while Ray does not return to Python.
_CONNECT_CODE = f"""
import signal
signal.alarm({_AUTO_SECONDS})
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
"""
_CONNECT_PAUSES = (1.0, 5.0)
# Shards pass no data through Ray's object store. Its default size is a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20


@dataclass
class _Connection:
    """The connection of this process to Ray. Several runs may use it.

    `is_ours` is False if somebody else, for example a notebook, has connected the process.
    """

    cluster: RayCluster
    is_ours: bool
    runs: int = 0


# Ray has one connection for each process.
_lock = threading.Lock()
_connection: _Connection | None = None
# This thread lives as long as the process. The kernel kills a local Ray when the thread ends that
# started it, and another run may still use it.
_starter = ThreadPoolExecutor(1, "ray-starter")


@contextmanager
def ray_runner(cluster: RayCluster) -> Iterator[RayTaskRunner[Any]]:
    """Yield a task runner that is connected to Ray.

    A process can be connected to only one Ray. Runs that use it at the same time share the
    connection, and the last one ends it. A local Ray ends with its connection.

    Raises:
        OptionError: The runtime environment is not valid, or this process is connected to another
            Ray.
        ServiceError: Ray cannot be started or reached.
    """
    check_cluster(cluster)  # `run_job` calls it too, but a deployment's run does not.
    with _lock:
        runner = _join(cluster)
    try:
        yield runner
    finally:
        with _lock:
            _leave()


def _join(cluster: RayCluster) -> RayTaskRunner[Any]:
    """Connect this process to Ray, or use its connection."""
    global _connection
    if _connection and not _is_same(_connection.cluster, cluster):
        raise OptionError(
            f"--ray {cluster.address}: another run in this process uses Ray at "
            f"{_connection.cluster.address}, or another runtime environment or token. Wait until "
            "it has ended, or start this run in another process."
        )
    joined = _connection or _Connection(cluster, is_ours=not ray.is_initialized())
    try:
        # The runner's own argument `address` would start a new Ray if "auto" finds no cluster.
        settings = _settings_for(cluster) | {"address": cluster.address}
        runner = _starter.submit(copy_context().run, _connect, settings).result()
    except Exception as error:
        raise _failure(cluster, error) from error
    _connection = joined
    joined.runs += 1
    return runner


def _leave() -> None:
    global _connection
    if not _connection:
        return
    _connection.runs -= 1
    if _connection.runs == 0:
        is_ours, _connection = _connection.is_ours, None
        # The runner's own `__exit__` calls functions that Ray Client does not support.
        if is_ours:
            _shut_down()


def _shut_down() -> None:
    """End the connection to Ray.

    If the head of the cluster is silent, Ray would wait forever, also when the process exits.
    """
    ending = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    ending.start()
    ending.join(_SHUTDOWN_SECONDS)
    if ending.is_alive():
        atexit.unregister(ray.shutdown)
        is_blocked.set()


def _is_same(one: RayCluster, other: RayCluster) -> bool:
    """Return whether two clusters have the same connection. Each run has its own resources."""
    return all(getattr(one, n) == getattr(other, n) for n in ("address", "runtime_env", "token"))


def _settings_for(cluster: RayCluster) -> dict[str, Any]:
    """Return the arguments of `ray.init` besides the address.

    The output of Ray's processes is shown only if batchmill's log level is DEBUG.
    """
    verbose = logger.isEnabledFor(logging.DEBUG)
    settings: dict[str, Any] = {} if verbose else {"log_to_driver": False, "logging_level": "ERROR"}
    if cluster.runtime_env:
        settings["runtime_env"] = cluster.runtime_env
    if cluster.is_local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        settings |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    return settings


def _connect(settings: dict[str, Any]) -> RayTaskRunner[Any]:
    warnings.filterwarnings("ignore", message="Ray Client connection", category=UserWarning)
    for pause in _CONNECT_PAUSES:
        try:
            return RayTaskRunner(init_kwargs=settings).__enter__()
        except ConnectionAbortedError:
            # Ray Client's server starts a process for each driver. This start fails sometimes.
            ray.shutdown()
            time.sleep(pause)
    return RayTaskRunner(init_kwargs=settings).__enter__()


def _failure(cluster: RayCluster, error: Exception) -> BatchmillError:
    """Return an error that describes why Ray cannot be used, and possible fixes."""
    reason = short_reason(error)
    if isinstance(error, ValueError | TypeError) and cluster.runtime_env:
        return OptionError(f"--runtime-env: Ray rejected it: {reason}")
    where = "on this machine" if cluster.is_local else f"at {cluster.address}"
    text = f"Ray {where} cannot be reached or started: {type(error).__name__}: {reason}"
    if cluster.is_local or not isinstance(error, LOST_CONNECTION):
        return ServiceError(text)
    # Ray does not report a wrong port or a wrong token, so the message suggests both.
    return ServiceError(
        f"{text.rstrip('.')}. Check the port: the head's default is 6379, and that of Ray Client "
        "(ray://) is 10001. If the cluster requires a token, set RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH, or save the token in a Ray cluster block."
    )


def check_cluster(cluster: RayCluster) -> None:
    """Check a cluster's runtime environment, and that Ray responds at its address.

    Raises:
        OptionError: The runtime environment has a field that Ray would ignore, or this process is
            connected to another Ray.
        ServiceError: Ray does not respond at the address.
    """
    known = sorted(name for name in RuntimeEnv.known_fields if name[0] != "_")
    for name in cluster.runtime_env:
        if name not in known:
            raise OptionError(
                f"--runtime-env: Ray has no field {name!r}. Use one of {', '.join(known)}."
            )
    if ray.is_initialized():
        _check_connected(cluster)
    elif cluster.head:
        _check_endpoint(f"--ray {cluster.address}", cluster.head)
    elif cluster.address == AUTO:
        _check_auto()


def _check_connected(cluster: RayCluster) -> None:
    """Raise OptionError if this process is connected to another Ray than the named one."""
    here = str(ray.get_runtime_context().gcs_address)
    is_same = cluster.head is None or (
        _ip(cluster.head[0]) == _ip(endpoint(here)[0])
        # Ray Client has a port of its own.
        and (cluster.address.startswith("ray://") or cluster.head[1] == endpoint(here)[1])
    )
    if not is_same:
        raise OptionError(
            f"--ray {cluster.address}: this process is already connected to Ray at {here}. Call "
            "ray.shutdown() first. To use that Ray, name the cluster 'auto'."
        )


def _ip(host: str) -> str:
    try:
        ip = socket.gethostbyname(host)
    except OSError:
        return host
    # Ray uses the address of the machine's network in place of 127.0.0.1.
    return str(cast("Any", ray).util.get_node_ip_address()) if ip.startswith("127.") else ip


def _check_endpoint(what: str, place: tuple[str, int]) -> None:
    """Raise ServiceError if no gRPC server responds at a host and port. Ray's servers use gRPC."""
    remedy = "Start the cluster, or correct the port."
    try:
        socket.create_connection(place, timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise ServiceError(f"{what}: nothing responds there ({error}). {remedy}") from error
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    host, port = place
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(_CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            raise ServiceError(
                f"{what}: the server there is not Ray, or does not respond. {remedy}"
            ) from None


def _check_auto() -> None:
    """Raise ServiceError if Ray finds no cluster by itself. Try it in another process."""
    named = os.environ.get("RAY_ADDRESS", "")
    place = endpoint(named)
    if all(place):
        _check_endpoint(f"--ray auto: RAY_ADDRESS={named}", place)
    tried = subprocess.run(
        [sys.executable, "-c", _CONNECT_CODE], stdin=subprocess.DEVNULL, capture_output=True
    )
    if tried.returncode < 0:
        raise ServiceError(
            f"--ray auto: Ray did not connect within {_AUTO_SECONDS} s. The cluster on this "
            "machine has probably died. Run: ray stop, and start it again."
        )
    if tried.returncode:
        # The first lines are a traceback.
        lines = ["", *tried.stderr.decode(errors="replace").strip().splitlines()]
        raise ServiceError(f"--ray auto: Ray cannot connect: {lines[-1]}")


def short_reason(error: Exception) -> str:
    """Return the first and the last line of an error's text, each cut to 300 characters.

    Ray's texts may contain a traceback of another process, and a long hint at the end.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    ends = dict.fromkeys([lines[0], lines[-1]])
    return " ".join(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..." for line in ends)


def lost_head_message(cluster: RayCluster) -> str:
    """Return the message for a cluster's head that was lost during a run."""
    if cluster.is_local:
        return f"Ray on the machine of the flow run has died. {_RESUME}"
    return f"The head of the Ray cluster at {cluster.address} stopped responding. {_RESUME}"
