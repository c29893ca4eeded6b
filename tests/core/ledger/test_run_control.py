"""A run and its shards exchange requests and answers as files."""

import pytest

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore


@pytest.fixture
def control(tmp_path):
    return Ledger(LocalStore(tmp_path)).control


def test_a_stop_request_reaches_the_shards_of_its_run_only(control):
    assert not control.stop_requested(1)
    control.request_stop(1)
    assert control.stop_requested(1)
    assert not control.stop_requested(2)


def test_the_flow_run_of_a_run_is_recorded(control):
    assert control.read_flow_run(1) is None
    control.record_flow_run(1, "0b5f")
    assert control.read_flow_run(1) == "0b5f"


def test_the_node_of_a_shard_is_recorded(control):
    assert control.read_node(1, "0-8-1") is None
    control.record_node(1, "0-8-1", "node")
    assert control.read_node(1, "0-8-1") == "node"
    assert control.read_node(1, "0-8-2") is None


def test_a_split_is_requested_and_answered(control):
    control.request_split(1, "0-8-1")
    assert control.split_requested(1, "0-8-1")
    assert control.read_split(1, "0-8-1") is None
    control.record_split(1, "0-8-1", 5)
    assert control.read_split(1, "0-8-1") == 5
    assert not control.split_requested(1, "0-8-2")


def test_attempts_of_a_shard_can_be_forgotten(control):
    control.record_attempts(1, "7-8-1", {7: [1]})
    control.record_attempts(1, "7-8-2", {7: [2], 77: [3]})
    assert control.read_attempts(1) == {7: [2], 77: [3]}
    control.forget_attempts(1, "7-8-2")
    assert control.read_attempts(1) == {7: [1]}


def test_attempts_that_are_removed_while_they_are_read_do_not_count(control, monkeypatch):
    control.record_attempts(1, "7-8-1", {7: [1]})
    names = control._store.names
    monkeypatch.setattr(control._store, "names", lambda folder: [*names(folder), "7-8-2"])
    assert control.read_attempts(1) == {7: [1]}


def test_the_files_are_named_as_the_documentation_says(control, tmp_path):
    control.request_stop(1)
    control.record_flow_run(1, "0b5f")
    control.record_node(1, "0-8-1", "node")
    control.request_split(1, "0-8-1")
    control.record_split(1, "0-8-1", 5)
    control.record_attempts(1, "0-8-1", {7: [1]})
    folder = tmp_path / ".batchmill/runs/000001"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "attempts/0-8-1",
        "flow-run",
        "place/0-8-1",
        "split/0-8-1",
        "split/0-8-1-from",
        "stop",
    }
