"""How many shards a cluster runs at a time: asked of a head that may fall silent."""

import socket
import threading

import pytest
import ray
from batchmill.blocks.ray_cluster import RayCluster
from batchmill.flows.cluster.capacity import Capacity, Node, cores_for

from batchmill import RunError

NODES = [
    {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0}, "Alive": True},
    {"NodeID": "b", "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 3.0}, "Alive": True},
    {"NodeID": "c", "NodeManagerAddress": "10.0.0.3", "Resources": {"CPU": 9.0}, "Alive": False},
]


@pytest.fixture
def capacity(monkeypatch):
    monkeypatch.setattr("batchmill.flows.cluster.capacity._HEAD_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        yield Capacity(RayCluster(address=f"ray://127.0.0.1:{port}"), {"CPU": 2})


def test_what_living_nodes_have_room_for(capacity, monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: NODES)
    assert capacity() == 3
    assert capacity.alive == {"a", "b"}


def test_a_head_that_takes_questions_and_does_not_answer(capacity, monkeypatch):
    answers, asked = threading.Event(), []

    def ask():
        asked.append(threading.current_thread())
        answers.wait()
        return NODES

    monkeypatch.setattr(ray, "nodes", ask)
    assert (capacity(), capacity()) == (None, None)
    assert len(asked) == 1  # What Ray is asked while it does not answer, it is asked once.
    monkeypatch.setattr("batchmill.flows.cluster.capacity._HEAD_SECONDS", 0.0)
    with pytest.raises(RunError, match="stopped responding"):
        capacity()
    answers.set()
    assert capacity() == 3
    asked[0].join()


def test_what_ray_raises_is_raised_where_it_was_asked(capacity, monkeypatch):
    def ask():
        raise ConnectionError("the other end is gone")

    monkeypatch.setattr(ray, "nodes", ask)
    with pytest.raises(ConnectionError, match="the other end is gone"):
        capacity()


@pytest.mark.parametrize(("address", "may_grow"), [("local", False), ("10.0.0.1:6379", True)])
def test_a_local_ray_does_not_grow(address, may_grow):
    found = [Node("a", "10.0.0.1", {"CPU": 4.0})]
    assert cores_for(RayCluster(address=address), found).may_grow is may_grow
