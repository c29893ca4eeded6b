"""The Ray that a run uses: a private one on this machine, or the cluster at an address."""

import importlib
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import ray
from prefect_ray import RayTaskRunner

from batchmill.batching import Cores
from batchmill.errors import OptionError, ServiceError

logger = logging.getLogger(__name__)

# Shards pass nothing through Ray's object store; its default is a third of the memory.
_LONGEST_FOLDER = 20
_CONNECT_SECONDS = 10
_OBJECT_STORE_BYTES = 100 * 2**20


@contextmanager
def ray_runner(address: str | None) -> Iterator[RayTaskRunner[Any]]:
    """Give a task runner that is connected to Ray, and leave nothing of a private Ray behind.

    What Ray's processes print is shown where batchmill's log level is DEBUG. Raises ServiceError
    where no Ray can be started, or none answers at the address.
    """
    verbose = logger.isEnabledFor(logging.DEBUG)
    quiet: dict[str, Any] = {} if verbose else {"log_to_driver": False, "logging_level": "ERROR"}
    # That a worker died, Ray prints to stdout all the same, where scripts expect JSON. There is no
    # setting for it; the run's own log says which shard it was.
    ray_worker: Any = importlib.import_module("ray._private.worker")
    ray_worker._worker_logs_enabled = verbose
    folder = None
    if address is None:
        folder = tempfile.mkdtemp(prefix="batchmill-", dir=_short_temporary_folder())
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        runner = RayTaskRunner(
            init_kwargs={
                "address": "local",  # Otherwise Ray may join somebody's cluster on this machine.
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": folder,
                **quiet,
            }
        )
    else:
        runner = RayTaskRunner(address=address, init_kwargs=quiet)
    try:
        try:
            runner.__enter__()
        except Exception as error:
            where = f"at {address} " if address else "on this machine "
            raise ServiceError(
                f"Ray {where}cannot be reached or started: {type(error).__name__}: {error}"
            ) from error
        try:
            yield runner
        finally:
            runner.__exit__(None, None, None)
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def check_address(address: str | None) -> None:
    """Raise OptionError for what is no address, ServiceError if nobody answers there.

    Ray itself would try for minutes.
    """
    if address is None or address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise OptionError(f"--ray {address}: expected ray://HOST:PORT, HOST:PORT or auto.")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ServiceError(
            f"--ray {address}: nobody answers there ({error}). Is the cluster up, the port right?"
        ) from error


def _short_temporary_folder() -> str | None:
    """Return a folder for Ray's sockets, whose paths have 107 bytes at most."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _LONGEST_FOLDER else os.path.join(os.sep, "tmp")


def cluster_cores() -> Cores:
    """Count the cores of the connected cluster."""
    nodes = [node for node in cast("Any", ray).nodes() if node["Alive"]]
    cores = [int(node["Resources"].get("CPU", 0)) for node in nodes]
    return Cores(total=max(1, sum(cores)), node=max([1, *cores]))
