"""Runs of one process share a connection to Ray. Faults are reported in seconds, in one line."""

import socket
from types import SimpleNamespace

import pytest
from batchmill.blocks.ray_cluster import RayCluster
from harness.live import free_ports

from batchmill import OptionError, ServiceError
from batchmill.orchestration.cluster import connection
from batchmill.orchestration.cluster.connection import check_cluster, short_reason

ADDRESS = "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("address", "is_same"),
    [
        (ADDRESS, True),
        ("10.0.0.1:6380", False),
        ("10.0.0.2:6379", False),
        ("ray://10.0.0.1:10001", True),
        ("ray://10.0.0.2:10001", False),
        ("auto", True),
        ("local", True),
    ],
)
def test_a_connected_process_accepts_only_its_own_ray(monkeypatch, address, is_same):
    context = SimpleNamespace(gcs_address=ADDRESS)
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(connection.ray, "get_runtime_context", lambda: context)
    if is_same:
        check_cluster(RayCluster(address=address))
        return
    with pytest.raises(OptionError, match=f"already connected to Ray at {ADDRESS}"):
        check_cluster(RayCluster(address=address))


def test_the_last_run_ends_the_connection(monkeypatch):
    ended = []
    monkeypatch.setattr(connection, "check_cluster", lambda _: None)
    monkeypatch.setattr(connection, "_connect", lambda _: None)
    monkeypatch.setattr(connection.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: ended.append(1))
    own = RayCluster(address=ADDRESS)
    with connection.ray_runner(own):
        with connection.ray_runner(own):
            pass
        assert ended == []
        for other in (
            RayCluster(address="auto"),
            RayCluster(address=ADDRESS, runtime_env={"working_dir": "."}),
        ):
            message = f"another run in this process uses Ray at {ADDRESS}"
            with pytest.raises(OptionError, match=message), connection.ray_runner(other):
                pass
    assert ended == [1]


@pytest.fixture
def silent(monkeypatch):
    """The address of a server that accepts connections and never responds."""
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_a_server_that_is_not_ray_is_rejected(silent, form):
    with pytest.raises(ServiceError, match="the server there is not Ray, or does not respond"):
        check_cluster(RayCluster(address=form.format(silent)))


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_an_address_without_a_server_is_rejected(form):
    address = form.format(f"127.0.0.1:{free_ports()[0]}")
    with pytest.raises(ServiceError, match=f"--ray {address}: nothing responds there"):
        check_cluster(RayCluster(address=address))


def test_the_address_in_the_environment_is_checked(silent, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", silent)
    with pytest.raises(ServiceError, match=f"auto: RAY_ADDRESS={silent}: the server there"):
        check_cluster(RayCluster(address="auto"))


def test_a_cluster_that_ray_cannot_find_is_reported_in_one_line(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Ray itself would look for the record of any cluster on this machine.
    code = "raise ConnectionError('Could not find any running Ray instance.')"
    monkeypatch.setattr(connection, "_CONNECT_CODE", code)
    with pytest.raises(ServiceError) as error:
        check_cluster(RayCluster(address="auto"))
    reason = "ConnectionError: Could not find any running Ray instance."
    assert str(error.value) == f"--ray auto: Ray cannot connect: {reason}"


def test_an_unknown_field_of_a_runtime_environment_is_rejected():
    cluster = RayCluster(address="local", runtime_env={"workin_dir": "."})
    with pytest.raises(OptionError, match="has no field 'workin_dir'"):
        check_cluster(cluster)


def test_the_search_for_a_cluster_ends_even_if_ray_never_returns(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = connection._CONNECT_CODE.replace("alarm(30)", "alarm(1)")
    code = code.replace("import ray\n", "import ctypes; ctypes.CDLL(None).sleep(20)\n")
    monkeypatch.setattr(connection, "_CONNECT_CODE", code)
    with pytest.raises(ServiceError, match="Ray did not connect within 30 s"):
        check_cluster(RayCluster(address="auto"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The worker died.\n\n  Traceback\n  ...\n", "The worker died. ..."),
        ("one line", "one line"),
        ("", "RuntimeError"),
        ("h" * 1000 + "\nend", "h" * 300 + "... end"),
        ("No module 'x'\nmiddle\n" + "h" * 1000, "No module 'x' " + "h" * 300 + "..."),
    ],
)
def test_the_first_line_has_the_cause(text, expected):
    assert short_reason(RuntimeError(text)) == expected
