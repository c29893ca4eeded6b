"""Ray's token: a cluster gets the configured token, a local Ray gets a random one."""

import os
import sys

import pytest
from batchmill.blocks.ray_cluster import RayCluster

NAMES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


@pytest.fixture(autouse=True)
def _no_token(monkeypatch, tmp_path):
    for name in NAMES:
        monkeypatch.setenv(name, "x")  # Makes monkeypatch restore the variable after the test.
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def settings():
    return {name: os.environ[name] for name in NAMES if name in os.environ}


def test_a_local_ray_gets_a_token_of_its_own():
    RayCluster(address="local").present_token()
    found = settings()
    assert len(found["RAY_AUTH_TOKEN"]) == 64
    assert found["RAY_AUTH_MODE"] == "token"


def test_the_configured_token_of_a_cluster_is_used():
    RayCluster(address="ray://head:10001", token="secret").present_token()
    assert settings() == {"RAY_AUTH_TOKEN": "secret", "RAY_AUTH_MODE": "token"}


def test_no_token_is_set_for_a_cluster_without_one():
    RayCluster(address="ray://head:10001").present_token()
    assert settings() == {}


@pytest.mark.parametrize("address", ["local", "ray://head:10001"])
def test_the_token_file_of_the_user_is_kept(address, tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    RayCluster(address=address).present_token()
    assert settings() == {"RAY_AUTH_MODE": "token"}


def test_a_user_may_choose_a_local_ray_without_a_token(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    RayCluster(address="local").present_token()
    assert settings() == {"RAY_AUTH_MODE": "disabled"}


def test_no_token_is_set_if_ray_is_imported_already(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    RayCluster(address="local").present_token()
    assert settings() == {}
