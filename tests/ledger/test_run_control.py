"""A run and its shards exchange requests and answers as files."""

import pytest

from batchmill.ledger.ledger import Ledger
from batchmill.storage import LocalStore


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


def test_lone_attempts_are_counted_for_each_row(control):
    assert control.count_lone_attempts(1, 7) == 0
    for row, attempt in [(7, 3), (7, 4), (7, 4), (77, 3)]:
        control.record_lone_attempt(1, row, attempt)
    assert control.count_lone_attempts(1, 7) == 2, "an attempt counts once"
    assert control.count_lone_attempts(1, 77) == 1


def test_the_files_are_named_as_the_documentation_says(control, tmp_path):
    control.request_stop(1)
    control.record_flow_run(1, "0b5f")
    control.record_node(1, "0-8-1", "node")
    control.request_split(1, "0-8-1")
    control.record_split(1, "0-8-1", 5)
    control.record_lone_attempt(1, 7, 3)
    folder = tmp_path / ".batchmill/runs/000001"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "alone/7-3",
        "flow-run",
        "place/0-8-1",
        "split/0-8-1",
        "split/0-8-1-from",
        "stop",
    }
