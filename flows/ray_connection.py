"""The Ray that a run uses: a private one on this machine, or a cluster."""

import importlib
import logging
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import ray
from batchmill.blocks.ray_cluster import RayCluster
from prefect_ray import RayTaskRunner
from ray.runtime_env import RuntimeEnv

from batchmill.errors import BatchmillError, OptionError, ServiceError
from batchmill.storage.scratch import FOR_RAY, scratch_folder

logger = logging.getLogger(__name__)

# What Ray Client raises when its connection is gone, or its process at the other end.
LOST_CONNECTION = (ConnectionError, grpc.RpcError)

_LONGEST_FOLDER = 16
_CONNECT_SECONDS = 10
_CONNECT_PAUSES = (1.0, 5.0)
# Shards pass nothing through Ray's object store; its default is a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20


@contextmanager
def ray_runner(cluster: RayCluster) -> Iterator[RayTaskRunner[Any]]:
    """Give a task runner that is connected to Ray, and leave nothing of a private Ray behind.

    What Ray's processes print is shown where batchmill's log level is DEBUG. Raises what
    `check_cluster` raises, and ServiceError where no Ray can be started or connected to.
    """
    check_cluster(cluster)  # Once more: a deployment's run has not come by the flow's own check.
    verbose = logger.isEnabledFor(logging.DEBUG)
    settings: dict[str, Any] = {} if verbose else {"log_to_driver": False, "logging_level": "ERROR"}
    # That a worker died, Ray prints to stdout all the same, where scripts expect JSON. There is no
    # setting for it; the run's own log says which shard it was.
    ray_worker: Any = importlib.import_module("ray._private.worker")
    ray_worker._worker_logs_enabled = verbose
    if cluster.runtime_env:
        settings["runtime_env"] = cluster.runtime_env
    with ExitStack() as stack:
        if cluster.is_private:
            folder = stack.enter_context(scratch_folder(FOR_RAY, _short_temporary_folder()))
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            settings |= {
                "address": "local",  # Otherwise Ray may join somebody's cluster on this machine.
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": str(folder),
            }
        else:
            _present_token(cluster)
            # Not the runner's own argument: for "auto", that starts a new Ray where there is none.
            settings["address"] = cluster.address
        was_there = ray.is_initialized()  # Somebody's, in a notebook: the runner then uses it.
        try:
            with _own_process_groups():
                runner = _connect(settings)
        except Exception as error:
            raise _failure(cluster, error) from error
        try:
            yield runner
        finally:
            # The runner's own way out asks Ray Client for what it does not know.
            if not was_there:
                ray.shutdown()


@contextmanager
def _own_process_groups() -> Iterator[None]:
    """Start Ray's processes in process groups of their own, as Ray itself does on Windows.

    Who ends the process group of a run, as Prefect's worker does to cancel it, ends the run alone;
    that ends Ray, when its shards have come to an end. Should the run be killed, Ray follows.
    """
    services: Any = importlib.import_module("ray._private.services")
    popen = services.ConsolePopen
    services.ConsolePopen = partial(popen, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = popen


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
    where = "on this machine" if cluster.is_private else f"at {cluster.address}"
    text = f"Ray {where} cannot be reached or started: {type(error).__name__}: {reason}"
    if cluster.is_private or not isinstance(error, LOST_CONNECTION):
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


def _present_token(cluster: RayCluster) -> None:
    """Have Ray show the cluster's token, if there is one; `ray://` would not look for it itself."""
    setup: Any = importlib.import_module("ray._private.authentication.authentication_token_setup")
    if cluster.token:
        os.environ["RAY_AUTH_TOKEN"] = cluster.token.get_secret_value()
        setup.AuthenticationTokenLoader.instance().reset_cache()
    try:
        # It sets RAY_AUTH_MODE, which Ray has read when it was imported, where it counts.
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    except ray.exceptions.AuthenticationError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ServiceError(f"The Ray cluster's token cannot be read: {reason}") from error


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
            f"--ray {cluster.address}: nobody answers there ({error}). Is the cluster up, the port "
            "right?"
        ) from error


def _short_temporary_folder() -> Path:
    """Return a folder for Ray's sockets, whose paths have 107 bytes at most."""
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) <= _LONGEST_FOLDER else os.path.join(os.sep, "tmp"))
