"""Checks that Ray can be reached at an address, before Ray itself tries it, and Ray's errors.

Ray would try for minutes. Most of that time it does not return to Python, so no signal ends it.
"""

import os
import socket
import subprocess
import sys
from typing import Any, cast

import grpc
import ray
from ray.runtime_env import RuntimeEnv

from batchmill.blocks.ray_cluster import AUTO, RayCluster, endpoint
from batchmill.errors import OptionError, ServiceError

# Ray Client raises these errors when its connection is lost or its server process has died.
LOST_CONNECTION = (ConnectionError, grpc.RpcError)
_SHOWN = 300
_CONNECT_SECONDS = 10
# A busy machine needs five seconds to connect.
_AUTO_SECONDS = 30
# The alarm ends the process even while Ray does not return to Python.
_CONNECT_CODE = f"""
import signal
signal.alarm({_AUTO_SECONDS})
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
"""


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
        found = socket.gethostbyname(host)
    except OSError:
        return host
    # Ray uses the address of the machine's network in place of 127.0.0.1.
    return str(cast("Any", ray).util.get_node_ip_address()) if found.startswith("127.") else found


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
    named = os.environ.get("RAY_ADDRESS")
    if named:
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
