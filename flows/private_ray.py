"""A Ray of a run's own, on its machine; it starts while other things do."""

import importlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import ray
from batchmill.tasks.shard import warm_up

from batchmill.storage.scratch import FOR_RAY, scratch_folder

_LONGEST_FOLDER = 16
_LOOK_SECONDS = 0.2
# Shards pass nothing through Ray's object store; its default is a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20


class PrivateRay:
    """A Ray in a thread of its own, which starts it, keeps it and ends it.

    The kernel ends Ray's processes with the thread that has started them: so it stays.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def start(self, settings: Mapping[str, Any], num_gpus: float = 0) -> None:
        """Begin to start it with these settings of `ray.init`, for shards that ask for such GPUs.

        Does nothing if that was begun, or where there is a Ray already: somebody's, in a notebook.
        """
        if self._thread or ray.is_initialized():
            return
        self._thread = threading.Thread(
            target=self._keep, args=(settings, num_gpus), name="private-ray", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until it has started and is warm. Raises what Ray raises."""
        if self._thread:
            self._started.wait()
        if self._error:
            raise self._error

    def release(self) -> None:
        """Begin to end it."""
        self._over.set()

    def end(self) -> None:
        """End it, and wait until it has ended."""
        self.release()
        if self._thread:
            self._thread.join()

    def _keep(self, settings: Mapping[str, Any], num_gpus: float) -> None:
        try:
            with scratch_folder(FOR_RAY, _short_temporary_folder()) as folder:
                try:
                    with _own_process_groups():
                        ray.init(**_PRIVATE_SETTINGS, **settings, _temp_dir=str(folder))
                    self._warm_up(num_gpus)
                    self._started.set()
                    self._over.wait()
                finally:
                    ray.shutdown()
        except BaseException as error:  # noqa: BLE001  # For the thread that waits for it.
            self._error = error
        finally:
            self._started.set()

    def _warm_up(self, num_gpus: float) -> None:
        """Have a Ray worker import what a shard needs, which takes as long as Ray itself."""
        rays: Any = ray
        there = rays.cluster_resources()
        if num_gpus > there.get("GPU", 0):
            return  # Who asks for what is not there is told so when the inputs are divided.
        # With all cores, so that a shard waits for this worker, and Ray starts no other for it.
        cores = there.get("CPU", 1)
        options = {"num_cpus": cores, "num_gpus": num_gpus, "max_retries": 0, "name": "warm up"}
        warm = [rays.remote(**options)(warm_up).remote()]
        # Of several shards that wait for it, Ray would begin with any; they are to go in order.
        while not self._over.is_set() and not ray.wait(warm, timeout=_LOOK_SECONDS)[0]:
            pass


_PRIVATE_SETTINGS: dict[str, Any] = {
    "address": "local",  # Otherwise Ray may join somebody's cluster on this machine.
    "include_dashboard": False,
    "object_store_memory": _OBJECT_STORE_BYTES,
}
_current: ContextVar[PrivateRay | None] = ContextVar("private_ray", default=None)


@contextmanager
def private_ray() -> Iterator[PrivateRay]:
    """Give the private Ray of the block around, or one that has not been started; it ends here."""
    around = _current.get()
    if around:
        yield around
        return
    own = PrivateRay()
    token = _current.set(own)
    try:
        yield own
    finally:
        _current.reset(token)
        own.end()


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


def _short_temporary_folder() -> Path:
    """Return a folder for Ray's sockets, whose paths have 107 bytes at most."""
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) <= _LONGEST_FOLDER else os.path.join(os.sep, "tmp"))
