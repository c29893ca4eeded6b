"""Runs of one process share a connection to Ray, or are rejected."""

from types import SimpleNamespace

import pytest
from batchmill.blocks.ray_cluster import RayCluster

from batchmill import OptionError
from batchmill.orchestration.cluster import address_check, connection

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
    monkeypatch.setattr(address_check.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(address_check.ray, "get_runtime_context", lambda: context)
    if is_same:
        address_check.check_cluster(RayCluster(address=address))
        return
    with pytest.raises(OptionError, match=f"already connected to Ray at {ADDRESS}"):
        address_check.check_cluster(RayCluster(address=address))


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
