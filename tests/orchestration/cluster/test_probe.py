"""A node that joins during a run gets shards only after it has passed the probe."""

import time

import pytest
from prefect.logging import disable_run_logger

from batchmill.orchestration.cluster.nodes import Node
from batchmill.orchestration.cluster.probe import NodeProbes

FIRST, LATE, BAD = (Node(name, f"10.0.0.{name}", {"CPU": 1.0}) for name in "123")


class Probes(NodeProbes):
    """Probes that end when the test says so. The first node was checked before the run."""

    def __init__(self):
        self._asked, self._known, self._unfit, self.ended = {}, {FIRST.id}, {}, []

    @property
    def waiting(self):
        return list(self._asked.values())

    def _start(self, node):
        self._asked[node.id] = node

    def end(self, node, *faults):
        self.ended.append((self._asked[node.id], list(faults)))

    def _collect(self, seconds):
        ended, self.ended = self.ended, []
        for node, _ in ended:
            del self._asked[node.id]
        return ended


@pytest.fixture
def probes():
    with disable_run_logger():
        yield Probes()


def test_a_late_node_is_used_after_its_probe(probes):
    assert probes.usable([FIRST, LATE]) == [FIRST]
    assert (probes.excluded, probes.waiting) == (["2"], [LATE])
    probes.end(LATE)
    assert probes.usable([FIRST, LATE]) == [FIRST, LATE]
    assert probes.excluded == []
    assert probes.usable([FIRST, LATE]) == [FIRST, LATE]
    assert probes.waiting == [], "a node is probed once"


def test_a_node_that_fails_its_probe_stays_excluded(probes):
    probes.usable([FIRST, BAD])
    probes.end(BAD, "the dataset is missing.")
    for _ in range(2):
        assert probes.usable([FIRST, BAD]) == [FIRST]
        assert probes.excluded == ["3"]


def test_a_node_that_fails_its_probe_is_probed_again(probes, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    probes.usable([FIRST, BAD])
    probes.end(BAD, "the Prefect API does not respond there.")
    assert probes.usable([FIRST, BAD]) == [FIRST]
    assert probes.reason == "on 10.0.0.3: the Prefect API does not respond there."
    now[0] = 29.0
    assert probes.usable([FIRST, BAD]) == [FIRST]
    assert probes.waiting == []
    now[0] = 31.0
    assert probes.usable([FIRST, BAD]) == [FIRST]
    assert (probes.excluded, probes.waiting) == (["3"], [BAD])
    probes.end(BAD)
    assert probes.usable([FIRST, BAD]) == [FIRST, BAD]
    assert probes.excluded == []


def test_a_node_that_refused_a_shard_is_excluded(probes):
    probes.usable([FIRST, LATE])
    probes.leave_out("2", "on 10.0.0.2: no step")
    probes.end(LATE)
    assert probes.usable([FIRST, LATE]) == [FIRST]
