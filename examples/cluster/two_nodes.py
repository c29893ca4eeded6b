"""Run a command on a Ray cluster of two nodes on this machine, then stop the cluster.

    python two_nodes.py COMMAND ...

Adds `--ray ADDRESS` to the command. Each node has one CPU. Other Ray clusters on the machine are
not changed.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HOST = "127.0.0.1"
NODES = ("head", "second")
START_SECONDS, STOP_SECONDS = 120, 30


def free_ports(count: int) -> list[int]:
    """Return ports that no process listens on."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def node(name: str, log: Path, *options: str) -> Iterator[None]:
    """Run one node with `ray start --block` during the `with` block. Its output goes to `log`."""
    (agent,) = free_ports(1)
    command = ["ray", "start", "--block", "--num-cpus=1", f"--node-ip-address={HOST}"]
    command += ["--disable-usage-stats", f"--dashboard-agent-listen-port={agent}", *options]
    with log.open("ab") as printed:
        process = subprocess.Popen(
            command,
            # The step in on_node.py writes the name into its rows.
            env=os.environ | {"NODE_NAME": name},
            stdout=printed,
            stderr=printed,
            # Ctrl-C must stop only the command, because the command ends before the cluster.
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # A node that waits for a lost head ignores SIGTERM.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def cluster() -> Iterator[str]:
    """Run a head and a second node, and yield the address of the head."""
    port, client_port = free_ports(2)
    address = f"{HOST}:{port}"
    # Without a token, any user of the machine could run code on the cluster.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "ray-start.log")
        head = node(
            NODES[0],
            log,
            "--head",
            f"--port={port}",
            f"--ray-client-server-port={client_port}",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
        )
        with head:
            wait_for_nodes(address, 1, log)
            with node(NODES[1], log, f"--address={address}"):
                wait_for_nodes(address, len(NODES), log)
                yield address


def wait_for_nodes(address: str, count: int, log: Path) -> None:
    """Wait until the cluster has `count` nodes. Raises TimeoutError with the log."""
    # Ray reads the token from the environment when it is imported.
    import ray

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            ray.init(address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, ValueError):
            time.sleep(0.5)
            continue
        try:
            if sum(node["Alive"] for node in ray.nodes()) >= count:
                return
        finally:
            ray.shutdown()
        time.sleep(0.5)
    raise TimeoutError(f"{address}: the Ray cluster did not start.\n{log.read_text()}")


def main() -> int:
    """Run the command in the arguments, and return its exit code."""
    print("Starting two Ray nodes on this machine ...", flush=True)
    with cluster() as address:
        return subprocess.call([*sys.argv[1:], "--ray", address])


if __name__ == "__main__":
    sys.exit(main())
