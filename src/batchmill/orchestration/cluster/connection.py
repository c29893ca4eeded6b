"""Connect to a Ray cluster, or start a local Ray."""

import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import ray
from prefect_ray import RayTaskRunner

from batchmill.blocks.ray_cluster import RayCluster
from batchmill.errors import BatchmillError, OptionError, ServiceError
from batchmill.orchestration.cluster.address_check import (
    LOST_CONNECTION,
    check_cluster,
    short_reason,
)

logger = logging.getLogger(__name__)

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
    found = _connection or _Connection(cluster, is_ours=not ray.is_initialized())
    try:
        # The runner's own argument `address` would start a new Ray if "auto" finds no cluster.
        settings = _settings_for(cluster) | {"address": cluster.address}
        runner = _starter.submit(copy_context().run, _connect, settings).result()
    except Exception as error:
        raise _failure(cluster, error) from error
    _connection = found
    found.runs += 1
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
            ray.shutdown()


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
    # Ray does not report a wrong port or a missing token, so the message suggests both.
    port = (
        "Check the port: Ray Client's default is 10001, which is not the head's port."
        if cluster.address.startswith("ray://")
        else "Check the port: the head's default is 6379. For Ray Client, use ray://HOST:PORT."
    )
    token = (
        "The cluster may require another token than the configured one"
        if os.environ.get("RAY_AUTH_MODE") == "token"
        else "If the cluster requires a token, set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or save "
        "the token in a Ray cluster block"
    )
    return ServiceError(f"{text.rstrip('.')}. {port} {token}.")
