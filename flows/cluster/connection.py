"""The Ray that a run uses: a local one, which is started for it, or a cluster."""

import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import ray
from batchmill.blocks.ray_cluster import RayCluster
from prefect_ray import RayTaskRunner
from ray.runtime_env import RuntimeEnv

from batchmill.errors import BatchmillError, OptionError, ServiceError

logger = logging.getLogger(__name__)

# What Ray Client raises when its connection is gone, or its process at the other end.
LOST_CONNECTION = (ConnectionError, grpc.RpcError)

_CONNECT_SECONDS = 10
_CONNECT_PAUSES = (1.0, 5.0)
# Shards pass nothing through Ray's object store; its default is a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20


@contextmanager
def ray_runner(cluster: RayCluster) -> Iterator[RayTaskRunner[Any]]:
    """Give a task runner that is connected to Ray; a local Ray is started, and ends with the block.

    Raises what `check_cluster` raises, and ServiceError if Ray cannot be started or connected to.
    """
    check_cluster(cluster)  # Once more: a deployment's run has not come by the flow's own check.
    was_there = ray.is_initialized()  # Somebody's, in a notebook: the runner then uses it.
    try:
        # Not the runner's own argument: for "auto", that starts a new Ray where there is none.
        runner = _connect(_settings_for(cluster) | {"address": cluster.address})
    except Exception as error:
        raise _failure(cluster, error) from error
    try:
        yield runner
    finally:
        # The runner's own way out asks Ray Client for what it does not know.
        if not was_there:
            ray.shutdown()


def _settings_for(cluster: RayCluster) -> dict[str, Any]:
    """Return the arguments of `ray.init` besides the address.

    What Ray's processes print is shown if batchmill's log level is DEBUG.
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
            # Ray Client's server starts a process for each driver, which fails now and then.
            ray.shutdown()
            time.sleep(pause)
    return RayTaskRunner(init_kwargs=settings).__enter__()


def _failure(cluster: RayCluster, error: Exception) -> BatchmillError:
    """Say why there is no Ray, and what may help."""
    # Of what the other side has sent with it, the last line says what it was.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = " ".join(dict.fromkeys([lines[0], lines[-1]])) if lines else type(error).__name__
    if isinstance(error, ValueError | TypeError) and cluster.runtime_env:
        return OptionError(f"--runtime-env: Ray refuses it: {reason}")
    where = "on this machine" if cluster.is_local else f"at {cluster.address}"
    text = f"Ray {where} cannot be reached or started: {type(error).__name__}: {reason}"
    if cluster.is_local or not isinstance(error, LOST_CONNECTION):
        return ServiceError(text)
    # Neither does Ray Client say so; it is not answered, and that is all.
    port = (
        "Is it the port of Ray Client (10001, unless told otherwise), and not the head's?"
        if cluster.address.startswith("ray://")
        else "Is it the head's port (6379, unless told otherwise)? Ray Client's is ray://HOST:PORT."
    )
    token = (
        "The cluster may want another token than the one it was shown"
        if os.environ.get("RAY_AUTH_MODE") == "token"
        else "If the cluster asks for a token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or save "
        "it with a Ray cluster block"
    )
    return ServiceError(f"{text.rstrip('.')}. {port} {token}.")


def check_cluster(cluster: RayCluster) -> None:
    """Raise ServiceError if nobody answers at a cluster's address; Ray would try for minutes.

    Raises OptionError for a runtime environment of which Ray would overlook a part.
    """
    known = sorted(name for name in RuntimeEnv.known_fields if name[0] != "_")
    for name in cluster.runtime_env:
        if name not in known:
            raise OptionError(f"--runtime-env: Ray knows no {name!r}. It knows {', '.join(known)}.")
    if cluster.head is None:
        return
    try:
        socket.create_connection(cluster.head, timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise ServiceError(
            f"--ray {cluster.address}: nothing responds there ({error}). Start the "
            "cluster, or correct the port."
        ) from error
