"""The living nodes of a cluster, also while its head does not respond."""

import socket
import threading

import pytest
import ray
from batchmill.blocks.ray_cluster import RayCluster

from batchmill import RunError
from batchmill.orchestration.cluster import nodes
from batchmill.orchestration.cluster.capacity import count_slots
from batchmill.orchestration.cluster.nodes import LivingNodes

NODES = [
    {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0}, "Alive": True},
    {"NodeID": "b", "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 3.0}, "Alive": True},
    {"NodeID": "c", "NodeManagerAddress": "10.0.0.3", "Resources": {"CPU": 9.0}, "Alive": False},
]


@pytest.fixture
def living(monkeypatch):
    monkeypatch.setattr(nodes, "_HEAD_ANSWER_SECONDS", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        yield LivingNodes(RayCluster(address=f"ray://127.0.0.1:{port}"))


def test_only_living_nodes_are_counted(living, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: NODES)
    assert [node.id for node in living()] == ["a", "b"]
    assert count_slots(living(), {"CPU": 2}) == 3


def test_a_head_that_accepts_connections_but_does_not_respond(living, monkeypatch):
    answers, begun, asked = threading.Event(), threading.Event(), []

    def ask():
        asked.append(threading.current_thread())
        begun.set()
        answers.wait()
        return NODES

    monkeypatch.setattr(ray, "nodes", ask)
    monkeypatch.setattr(nodes, "_HEAD_ANSWER_SECONDS", 0.2)
    assert (living(), living()) == (None, None)
    assert begun.wait(60)
    assert len(asked) == 1  # The second call waits for the first request.
    monkeypatch.setattr(nodes, "_HEAD_SECONDS", 0.0)
    with pytest.raises(RunError, match="stopped responding"):
        living()
    answers.set()
    asked[0].join()
    assert [node.id for node in living()] == ["a", "b"]


def test_an_error_of_ray_is_raised_in_the_calling_thread(living, monkeypatch):
    def ask():
        raise ConnectionError("the other end is gone")

    monkeypatch.setattr(ray, "nodes", ask)
    with pytest.raises(ConnectionError, match="the other end is gone"):
        living()
