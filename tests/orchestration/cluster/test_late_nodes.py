"""A node that joins during a run gets shards only after it has passed the probe."""

import pytest
from prefect.logging import disable_run_logger

from batchmill.orchestration.cluster.capacity import Node
from batchmill.orchestration.cluster.ray_runner import LateNodes

FIRST, LATE, BAD = (Node(name, f"10.0.0.{name}", {"CPU": 1.0}) for name in "123")


class Probes:
    """Probes that end when the test says so."""

    def __init__(self):
        self.waiting, self.ended = [], []

    def start(self, node):
        self.waiting.append(node)

    def end(self, node, *faults):
        self.waiting.remove(node)
        self.ended.append((node, list(faults)))

    def collect(self, seconds):
        ended, self.ended = self.ended, []
        return ended


@pytest.fixture
def late():
    probes = Probes()
    with disable_run_logger():
        yield LateNodes(probes, [FIRST]), probes


def test_a_late_node_is_used_after_its_probe(late):
    nodes, probes = late
    assert nodes.usable([FIRST, LATE]) == [FIRST]
    assert (nodes.excluded, probes.waiting) == (["2"], [LATE])
    probes.end(LATE)
    assert nodes.usable([FIRST, LATE]) == [FIRST, LATE]
    assert nodes.excluded == []
    assert nodes.usable([FIRST, LATE]) == [FIRST, LATE]
    assert probes.waiting == [], "a node is probed once"


def test_a_node_that_fails_its_probe_stays_excluded(late):
    nodes, probes = late
    nodes.usable([FIRST, BAD])
    probes.end(BAD, "the dataset is missing.")
    for _ in range(2):
        assert nodes.usable([FIRST, BAD]) == [FIRST]
        assert nodes.excluded == ["3"]


def test_a_node_that_refused_a_shard_is_excluded(late):
    nodes, probes = late
    nodes.usable([FIRST, LATE])
    nodes.leave_out("2", "on 10.0.0.2: no step")
    probes.end(LATE)
    assert nodes.usable([FIRST, LATE]) == [FIRST]
