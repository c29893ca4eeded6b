"""A Ray cluster on this machine. Each node has its own network namespace.

A bridge connects the namespaces and the head. A node can be disconnected. Needs root, and Debian's
iproute2.
"""

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from harness.live import MARK, free_ports, processes_marked, wait_for

_START_SECONDS = 120
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True)


@dataclass
class Network:
    """A bridge with an address, and namespaces with one address each."""

    name: str
    prefix: str
    count: int = 1
    namespaces: list = field(default_factory=list)

    @property
    def address(self):
        return f"{self.prefix}.1"

    def join(self):
        """Create a namespace on the network; return its name and address."""
        self.count += 1
        namespace, cable = f"{self.name}n{self.count}", self.cable(self.count)
        inner = f"{self.name}i{self.count}"
        ip("netns", "add", namespace)
        self.namespaces.append(namespace)
        ip("link", "add", cable, "type", "veth", "peer", "name", inner)
        ip("link", "set", inner, "netns", namespace)
        ip("link", "set", cable, "master", self.name, "up")
        address = f"{self.prefix}.{self.count}"
        ip("-n", namespace, "addr", "add", f"{address}/24", "dev", inner)
        for device in (inner, "lo"):
            ip("-n", namespace, "link", "set", device, "up")
        ip("-n", namespace, "route", "add", "default", "via", self.address)
        return namespace, address

    def cable(self, number):
        return f"{self.name}c{number}"


@contextmanager
def network_namespace():
    """Move this thread to a new network namespace until the block ends; new processes follow."""
    libc = ctypes.CDLL(None, use_errno=True)
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    assert libc.unshare(_NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    try:
        ip("link", "set", "lo", "up")
        yield
    finally:
        assert libc.setns(outside, 0) == 0, os.strerror(ctypes.get_errno())
        os.close(outside)


@contextmanager
def network():
    name = f"b{uuid.uuid4().hex[:6]}"
    # Processes of a test run share the seed of `random`, but need different networks.
    chance = random.SystemRandom()
    prefix = f"10.{chance.randint(200, 249)}.{chance.randint(1, 254)}"
    made = Network(name, prefix)
    ip("link", "add", name, "type", "bridge")
    try:
        ip("addr", "add", f"{made.address}/24", "dev", name)
        ip("link", "set", name, "up")
        yield made
    finally:
        for namespace in made.namespaces:
            ip("netns", "del", namespace)
        ip("link", "del", name)


@dataclass
class Node:
    """A node of the cluster: the processes of one `ray start`."""

    number: int
    address: str
    namespace: str | None
    mark: str

    @property
    def place(self):
        """Return the network namespace that a step on this node sees."""
        return os.readlink(f"/proc/{self.processes()[0].pid}/ns/net")

    def processes(self, name=""):
        return [process for process in processes_marked(self.mark) if name in _command(process)]

    def kill(self, name, number=signal.SIGKILL):
        """Send a signal to the node's processes with this name."""
        found = self.processes(name)
        assert found, f"node {self.number} has no {name}"
        for process in found:
            process.send_signal(number)

    def stop(self):
        """End all processes of the node."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_for(lambda: not self.processes(), f"the end of node {self.number}")


def _command(process):
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


@dataclass
class Cluster:
    """A head, by default without CPUs for work, and nodes."""

    network: Network
    environment: dict
    folder: str
    nodes: list = field(default_factory=list)

    @property
    def address(self):
        """Return the address of the head's GCS."""
        return f"{self.network.address}:{self.port}"

    @property
    def client_address(self):
        """Return the URL for Ray Client."""
        return f"ray://{self.network.address}:{self.client_port}"

    @property
    def head(self):
        return self.nodes[0]

    def start_head(self, num_cpus=0):
        self.port, self.client_port, *others = free_ports(self.network.address, 7)
        names = (
            "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port",
            "metrics-export-port",
            "runtime-env-agent-port",
            "dashboard-port",
        )
        ports = [f"--{name}={port}" for name, port in zip(names, others, strict=True)]
        node = Node(1, self.network.address, None, uuid.uuid4().hex)
        self._start(
            node,
            "--head",
            f"--port={self.port}",
            f"--ray-client-server-port={self.client_port}",
            "--include-dashboard=false",
            f"--temp-dir={self.folder}",
            *ports,
            num_cpus=num_cpus,
        )
        return node

    def add_node(self, num_cpus=1, num_gpus=0, wrapper=(), environment=None, **resources):
        """Start a node in a new network namespace; `wrapper` runs its command."""
        namespace, address = self.network.join()
        node = Node(self.network.count, address, namespace, uuid.uuid4().hex)
        self._start(
            node,
            f"--address={self.address}",
            f"--resources={json.dumps(resources)}",
            f"--num-gpus={num_gpus}",
            num_cpus=num_cpus,
            wrapper=["ip", "netns", "exec", namespace, *wrapper],
            environment=environment,
        )
        return node

    def disconnect(self, node):
        """Disconnect a node from the network."""
        ip("link", "set", self.network.cable(node.number), "down")

    def reconnect(self, node):
        ip("link", "set", self.network.cable(node.number), "up")

    def _start(self, node, *options, num_cpus, wrapper=(), environment=None):
        self.nodes.append(node)
        done = subprocess.run(
            [
                *wrapper,
                *(sys.executable, "-m", "ray.scripts.scripts", "start", *options),
                f"--node-ip-address={node.address}",
                f"--num-cpus={num_cpus}",
                "--object-store-memory=80000000",
                "--disable-usage-stats",
            ],
            env=self.environment | {MARK: node.mark} | (environment or {}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def ray_cluster(environment):
    """Yield a cluster without nodes; stop the nodes that the test added when the block ends."""
    with ExitStack() as stack:
        net = stack.enter_context(network())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp"))
        cluster = Cluster(net, environment, folder)
        stack.callback(lambda: [node.stop() for node in reversed(cluster.nodes)])
        yield cluster


def hiding(folder):
    """Return a wrapper for a node's command: the node sees the folder as empty."""
    script = f'mount -t tmpfs none "{folder}" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


def read_only(folder):
    """Return a wrapper for a node's command: the node cannot write to the folder."""
    script = (
        f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}" && exec "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh"]
