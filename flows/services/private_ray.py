"""A Ray of a run's own, on its machine; it starts while other things do, as Prefect's import."""

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import ray
from batchmill.flows.services.ray_start import SYSTEM_CONFIG, quick_start

from batchmill.storage.scratch import FOR_RAY, scratch_folder, short_base

logger = logging.getLogger(__name__)

NO_RUNTIME_ENV: Mapping[str, Any] = {}
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
        self._warm_up: Callable[[], None] | None = None
        self._may_warm_up = threading.Event()
        self._ready = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def start(self, runtime_env: Mapping[str, Any] = NO_RUNTIME_ENV) -> None:
        """Begin to start it.

        Does nothing if that was begun, or where there is a Ray already: somebody's, in a notebook.
        """
        if self._thread or ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        settings = _PRIVATE_SETTINGS | settings_for(runtime_env)
        settings["_system_config"] = dict(SYSTEM_CONFIG)  # Ray writes into it.
        self._thread = threading.Thread(
            target=self._keep, args=(settings,), name="private-ray", daemon=True
        )
        self._thread.start()

    def warm_up(self, function: Callable[[], None], num_gpus: float = 0) -> None:
        """Have a worker, for tasks with such GPUs, call this as soon as Ray has started.

        Who waits for Ray, waits for that. Later calls do nothing.
        """
        if not self._warm_up:
            self._warm_up = partial(self._call_in_worker, function, num_gpus)
            self._may_warm_up.set()

    def wait(self) -> None:
        """Wait until it has started and is warm. Raises what Ray raises."""
        if self._thread:
            self._ready.wait()
        if self._error:
            raise self._error

    def release(self) -> None:
        """Begin to end it."""
        self._over.set()
        self._may_warm_up.set()

    def end(self) -> None:
        """End it, and wait until it has ended."""
        self.release()
        if self._thread:
            self._thread.join()

    def _keep(self, settings: Mapping[str, Any]) -> None:
        try:
            with scratch_folder(FOR_RAY, short_base(_LONGEST_FOLDER)) as folder:
                try:
                    with quick_start(logs=settings.get("log_to_driver", True)):
                        ray.init(**settings, _temp_dir=str(folder))
                    self._may_warm_up.wait()
                    if self._warm_up:
                        self._warm_up()
                    self._ready.set()
                    self._over.wait()
                finally:
                    ray.shutdown()
        except BaseException as error:  # noqa: BLE001  # For the thread that waits for it.
            self._error = error
        finally:
            self._ready.set()

    def _call_in_worker(self, function: Callable[[], None], num_gpus: float) -> None:
        rays: Any = ray
        there = rays.cluster_resources()
        if num_gpus > there.get("GPU", 0):
            return  # Who asks for what is not there is told so when the inputs are divided.
        # With all cores, so that a shard waits for this worker, and Ray starts no other for it.
        cores = there.get("CPU", 1)
        options = {"num_cpus": cores, "num_gpus": num_gpus, "max_retries": 0, "name": "warm up"}
        warm = [rays.remote(**options)(function).remote()]
        # Of several shards that wait for it, Ray would begin with any; they are to go in order.
        while not self._over.is_set() and not ray.wait(warm, timeout=_LOOK_SECONDS)[0]:
            pass


def settings_for(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `ray.init` for what a run shows, and for what it brings along.

    What Ray's processes print is shown where batchmill's log level is DEBUG.
    """
    verbose = logger.isEnabledFor(logging.DEBUG)
    settings: dict[str, Any] = {} if verbose else {"log_to_driver": False, "logging_level": "ERROR"}
    # That a worker died, Ray prints to stdout all the same, where scripts expect JSON. There is no
    # setting for it; the run's own log says which shard it was.
    ray_worker: Any = importlib.import_module("ray._private.worker")
    ray_worker._worker_logs_enabled = verbose
    if runtime_env:
        settings["runtime_env"] = runtime_env
    return settings


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
