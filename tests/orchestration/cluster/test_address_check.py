"""Addresses at which Ray does not respond are reported in seconds."""

import socket

import pytest
from batchmill.blocks.ray_cluster import RayCluster
from live import free_ports

from batchmill import OptionError, ServiceError
from batchmill.orchestration.cluster import address_check
from batchmill.orchestration.cluster.address_check import check_cluster


@pytest.fixture
def silent(monkeypatch):
    """The address of a server that accepts connections and never responds."""
    monkeypatch.setattr(address_check, "_CONNECT_SECONDS", 0.5)
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
    monkeypatch.setattr(address_check, "_CONNECT_CODE", code)
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
    code = address_check._CONNECT_CODE.replace("alarm(30)", "alarm(1)")
    code = code.replace("import ray\n", "import ctypes; ctypes.CDLL(None).sleep(20)\n")
    monkeypatch.setattr(address_check, "_CONNECT_CODE", code)
    with pytest.raises(ServiceError, match="Ray did not connect within 30 s"):
        check_cluster(RayCluster(address="auto"))
