"""A Ray cluster of several machines, and a Prefect server that all machines can reach."""

from functools import partial

import pytest
from harness.gated import command, make_inputs
from harness.live import ask, clean_environment, prefect_server_in, shell_in
from harness.ray_cluster import network_namespace, ray_cluster


@pytest.fixture(scope="package", autouse=True)
def own_network():
    """Run the tests, servers and clusters in a network namespace of their own.

    A cluster adds and removes network interfaces. Chromium, which another process of the test run
    uses, drops its connections at each change. Ray Client picks ports from 23000 up and binds them
    seconds later, so the clusters of two test runs would disturb each other.
    """
    with network_namespace():
        yield


@pytest.fixture(scope="package")
def ray_environment(tmp_path_factory):
    """The environment of the cluster's machines and of its users."""
    home = tmp_path_factory.mktemp("home")
    # By default, Ray waits two minutes before it removes a machine that does not respond.
    health_check = {"period_ms": "1000", "timeout_ms": "5000", "failure_threshold": "3"}
    ray = {f"RAY_health_check_{name}": value for name, value in health_check.items()}
    return clean_environment(home / "prefect") | {"HOME": str(home)} | ray


@pytest.fixture(scope="package")
def cluster(ray_environment):
    """A cluster whose head runs no shards."""
    with ray_cluster(ray_environment) as cluster:
        cluster.start_head()
        yield cluster


@pytest.fixture(scope="package")
def server(cluster, tmp_path_factory):
    """The URL of the API of a Prefect server on the cluster's network."""
    with prefect_server_in(tmp_path_factory.mktemp("server"), cluster.network.address) as url:
        yield url


@pytest.fixture
def api(server):
    """A function that calls the server's API."""
    return partial(ask, server)


@pytest.fixture
def shell(work, server, ray_environment):
    """A user's shell that uses the Prefect server."""
    with shell_in(work, ray_environment | {"PREFECT_API_URL": server}) as shell:
        yield shell


@pytest.fixture
def node(cluster):
    """A function that adds a node. All added nodes are stopped at the end of the test."""
    started = []

    def start(**options):
        started.append(cluster.add_node(**options))
        return started[-1]

    yield start
    for one in started:
        one.stop()
        cluster.nodes.remove(one)


@pytest.fixture(autouse=True)
def inputs(work):
    """Write the inputs and the step to the folder of the test."""
    make_inputs(work)


@pytest.fixture(scope="package")
def undisturbed(server, ray_environment, tmp_path_factory):
    """The dataset of a run on this machine, without Ray and without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    make_inputs(folder)
    with shell_in(folder, ray_environment | {"PREFECT_API_URL": server}) as shell:
        done = shell.run(*command(folder, "alone"))
        assert done.returncode == 0, done.stderr
    return folder / "alone"
