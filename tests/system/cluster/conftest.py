"""A Ray cluster of several machines, and a Prefect server that all of them reach."""

from functools import partial

import pytest
from gated import command, make_inputs
from live import ask, clean_environment, prefect_server_in, shell_in
from ray_cluster import ray_cluster


@pytest.fixture(scope="session")
def ray_environment(tmp_path_factory):
    """The environment of the cluster's machines and of who uses it."""
    home = tmp_path_factory.mktemp("home")
    # Else Ray waits for two minutes before it gives up on a machine that does not answer.
    patience = {"period_ms": "1000", "timeout_ms": "5000", "failure_threshold": "3"}
    ray = {f"RAY_health_check_{name}": value for name, value in patience.items()}
    return clean_environment(home / "prefect") | {"HOME": str(home)} | ray


@pytest.fixture(scope="session")
def cluster(ray_environment):
    """A cluster whose head runs no shards."""
    with ray_cluster(ray_environment) as cluster:
        cluster.start_head()
        yield cluster


@pytest.fixture(scope="session")
def server(cluster, tmp_path_factory):
    """A Prefect server on the cluster's network; gives its API's URL."""
    with prefect_server_in(tmp_path_factory.mktemp("server"), cluster.network.address) as url:
        yield url


@pytest.fixture
def api(server):
    """Asks the server's API."""
    return partial(ask, server)


@pytest.fixture
def shell(work, server, ray_environment):
    """A shell of a user with the server."""
    with shell_in(work, ray_environment | {"PREFECT_API_URL": server}) as shell:
        yield shell


@pytest.fixture
def node(cluster):
    """Starts nodes, which are gone at the end of the test."""
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
    """The inputs and the step, in the folder that a test works in."""
    make_inputs(work)


@pytest.fixture(scope="session")
def undisturbed(server, ray_environment, tmp_path_factory):
    """The dataset that this machine makes of the inputs, without Ray."""
    folder = tmp_path_factory.mktemp("undisturbed")
    make_inputs(folder)
    with shell_in(folder, ray_environment | {"PREFECT_API_URL": server}) as shell:
        done = shell.run(*command(folder, "alone"))
        assert done.returncode == 0, done.stderr
    return folder / "alone"
