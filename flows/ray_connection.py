"""The Ray that a run uses: a private one on this machine, or a cluster."""

import importlib
import logging
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import ray
from batchmill.blocks.ray_cluster import RayCluster
from prefect_ray import RayTaskRunner
from ray.runtime_env import RuntimeEnv

from batchmill.batching import Cores
from batchmill.errors import OptionError, RunError, ServiceError
from batchmill.storage.scratch import FOR_RAY, scratch_folder

logger = logging.getLogger(__name__)

_LONGEST_FOLDER = 16
_CONNECT_SECONDS = 10
_CONNECT_PAUSES = (1.0, 5.0)
# Shards pass nothing through Ray's object store; its default is a third of the memory.
_OBJECT_STORE_BYTES = 100 * 2**20
# Ray ends a driver whose head is gone for a minute.
_HEAD_SECONDS, _HEAD_ANSWER_SECONDS = 30.0, 2.0


@contextmanager
def ray_runner(cluster: RayCluster) -> Iterator[RayTaskRunner[Any]]:
    """Give a task runner that is connected to Ray, and leave nothing of a private Ray behind.

    What Ray's processes print is shown where batchmill's log level is DEBUG. Raises ServiceError
    where no Ray can be started, or none answers at the address.
    """
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
            runner = _connect(settings)
        except Exception as error:
            raise ServiceError(_failure(cluster, error)) from error
        try:
            yield runner
        finally:
            # The runner's own way out asks Ray Client for what it does not know.
            if not was_there:
                ray.shutdown()


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


def _failure(cluster: RayCluster, error: Exception) -> str:
    where = "on this machine" if cluster.is_private else f"at {cluster.address}"
    # Of what the other side has sent with it, the last line says what it was.
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    reason = " ".join(dict.fromkeys([lines[0], lines[-1]]))
    hint = ""
    if not cluster.is_private and os.environ.get("RAY_AUTH_MODE") != "token":
        # Ray Client does not say so; it is not answered, and that is all.
        hint = (
            " If the cluster asks for a token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or save "
            "it with a Ray cluster block."
        )
    return f"Ray {where} cannot be reached or started: {type(error).__name__}: {reason}{hint}"


def _present_token(cluster: RayCluster) -> None:
    """Have Ray show the cluster's token, if there is one; `ray://` would not look for it itself."""
    setup: Any = importlib.import_module("ray._private.authentication.authentication_token_setup")
    if cluster.token:
        os.environ["RAY_AUTH_TOKEN"] = cluster.token.get_secret_value()
        setup.AuthenticationTokenLoader.instance().reset_cache()
    # It sets RAY_AUTH_MODE, which Ray has read when it was imported, where it counts.
    setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def check_cluster(cluster: RayCluster) -> None:
    """Raise ServiceError if nobody answers at a cluster's address; Ray would try for minutes.

    Raises OptionError for a runtime environment of which Ray would overlook a part.
    """
    known = sorted(name for name in RuntimeEnv.known_fields if name[0] != "_")
    for name in cluster.runtime_env:
        if name not in known:
            raise OptionError(f"--runtime-env: Ray knows no {name!r}. It knows {', '.join(known)}.")
    host, colon, port = cluster.address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ServiceError(
            f"--ray {cluster.address}: nobody answers there ({error}). Is the cluster up, the port "
            "right?"
        ) from error


def _short_temporary_folder() -> Path:
    """Return a folder for Ray's sockets, whose paths have 107 bytes at most."""
    usual = tempfile.gettempdir()
    return Path(usual if len(usual) <= _LONGEST_FOLDER else os.path.join(os.sep, "tmp"))


class Machine(NamedTuple):
    """A machine of the cluster: its id, its address, and what it has of each resource."""

    id: str
    address: str
    resources: Mapping[str, float]

    def room_for(self, needs: Mapping[str, float]) -> int:
        """Return how many shards with such needs it runs at a time."""
        return min(int(self.resources.get(name, 0) // amount) for name, amount in needs.items())


def machines() -> list[Machine]:
    """List the living machines of the connected cluster."""
    return [
        Machine(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in cast("Any", ray).nodes()
        if node["Alive"]
    ]


class Capacity:
    """How many shards with such needs a cluster runs at a time, as its machines come and go.

    `alive` are the ids of those that were there at the last count.
    """

    def __init__(self, cluster: RayCluster, needs: Mapping[str, float]) -> None:
        self._cluster = cluster
        self._needs = needs
        self._head = _head_address(cluster)
        self._silent_since: float | None = None
        self.alive: frozenset[str] = frozenset()

    def __call__(self) -> int | None:
        """Count; None while the cluster's head is silent: whoever asks it for something waits.

        Raises RunError when that takes long. Ray itself would end this process then, without a
        word.
        """
        if self._answers():
            self._silent_since = None
            found = machines()
            self.alive = frozenset(machine.id for machine in found)
            return count_slots(found, self._needs)
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if now - self._silent_since > _HEAD_SECONDS:
            raise RunError(lost_head_message(self._cluster))
        return None

    def _answers(self) -> bool:
        if self._head is None:
            return True
        try:
            socket.create_connection(self._head, timeout=_HEAD_ANSWER_SECONDS).close()
        except OSError:
            return False
        return True


def lost_head_message(cluster: RayCluster) -> str:
    """Say that a cluster's head went away in the middle of a run, and what that costs."""
    return (
        f"The head of the Ray cluster at {cluster.address} answers no more. What is committed "
        "stays; once the cluster is back, the same command, given again, completes the dataset."
    )


def _head_address(cluster: RayCluster) -> tuple[str, int] | None:
    """Return where a cluster's head can be asked whether it lives; None for a private Ray."""
    if cluster.is_private:
        return None
    address = cluster.address
    if not address.startswith("ray://"):
        address = ray.get_runtime_context().gcs_address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host, int(port)


def cores_for(cluster: RayCluster, found: list[Machine]) -> Cores:
    """Count the cores of a cluster's machines, and the shards that they can run at a time."""
    cores = [int(machine.resources.get("CPU", 0)) for machine in found]
    return Cores(
        total=max(1, sum(cores)), node=max([1, *cores]), slots=partial(_slots, cluster, found)
    )


def shard_needs(cluster: RayCluster, found: list[Machine], workers: int) -> dict[str, float]:
    """Return what a shard asks for: of CPUs, no more than the largest machine has."""
    most = max([1, *(int(machine.resources.get("CPU", 0)) for machine in found)])
    return cluster.needs(min(workers, most))


def count_slots(found: list[Machine], needs: Mapping[str, float]) -> int:
    """Count the shards with such needs that run at a time."""
    return sum(machine.room_for(needs) for machine in found)


def _slots(cluster: RayCluster, found: list[Machine], workers: int) -> int:
    """Count the shards that run at a time. Raises OptionError if no machine can run any."""
    needs = shard_needs(cluster, found, workers)
    slots = count_slots(found, needs)
    if slots:
        return slots
    asked = ", ".join(f"{name}={amount:g}" for name, amount in needs.items())
    have = "; ".join(
        f"{machine.address}: "
        + ", ".join(f"{name}={machine.resources.get(name, 0):g}" for name in needs)
        for machine in found
    )
    raise OptionError(
        f"No machine of the Ray cluster can run a shard: it asks for {asked}, and there is {have}. "
        "Ask for less (--shard-resource, --num-workers), or start a machine that has it."
    )


def remote_options_of(needs: Mapping[str, float]) -> dict[str, Any]:
    """Turn a shard's needs into options of a Ray task that Ray does not repeat by itself."""
    own = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    others = {name: amount for name, amount in needs.items() if name not in own}
    return {
        **{option: needs[name] for name, option in own.items() if name in needs},
        **({"resources": others} if others else {}),
        # Ray's own retries would run a shard again behind Prefect's back.
        "max_retries": 0,
    }
