"""The Ray that a run uses: a private one on this machine, or a cluster."""

import importlib
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
from batchmill.flows.services.private_ray import PrivateRay, private_ray, settings_for
from batchmill.tasks.shard import warm_up
from prefect_ray import RayTaskRunner
from ray.runtime_env import RuntimeEnv

from batchmill.errors import BatchmillError, OptionError, ServiceError

# What Ray Client raises when its connection is gone, or its process at the other end.
LOST_CONNECTION = (ConnectionError, grpc.RpcError)

_CONNECT_SECONDS = 10
_CONNECT_PAUSES = (1.0, 5.0)


def start_private(cluster: RayCluster, private: PrivateRay) -> None:
    """Begin to start the private Ray that a run will use, unless that was begun before.

    It is ready when one of its workers has imported what a shard needs, which takes as long as Ray
    itself.
    """
    if cluster.is_private:
        private.start(cluster.runtime_env)
        private.warm_up(warm_up, cluster.num_gpus)


@contextmanager
def ray_runner(cluster: RayCluster) -> Iterator[RayTaskRunner[Any]]:
    """Give a task runner that is connected to Ray.

    A private Ray begins to end after the block; it has ended after that of `private_ray`. Raises
    what `check_cluster` raises, and ServiceError where no Ray can be started or connected to.
    """
    check_cluster(cluster)  # Once more: a deployment's run has not come by the flow's own check.
    if cluster.is_private:
        with private_ray() as private:
            start_private(cluster, private)
            try:
                private.wait()
                runner = RayTaskRunner(init_kwargs={"address": "local"}).__enter__()
            except Exception as error:
                raise _failure(cluster, error) from error
            try:
                yield runner
            finally:
                private.release()
        return
    _present_token(cluster)
    was_there = ray.is_initialized()  # Somebody's, in a notebook: the runner then uses it.
    try:
        # Not the runner's own argument: for "auto", that starts a new Ray where there is none.
        runner = _connect(settings_for(cluster.runtime_env) | {"address": cluster.address})
    except Exception as error:
        raise _failure(cluster, error) from error
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
