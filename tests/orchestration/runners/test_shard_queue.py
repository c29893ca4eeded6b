"""Inputs of a slow shard move to idle nodes."""

import pytest

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import open_store
from batchmill.orchestration.runners import shard_queue
from batchmill.orchestration.runners.shard_queue import ShardQueue, SubmittedShard, divide
from batchmill.runs.shards.shard import Shard


@pytest.fixture
def control(planned):
    return Ledger(open_store(planned.dataset)).control


@pytest.fixture
def future(make_future):
    return make_future()


@pytest.fixture
def queue(planned, future, make_runner):
    running = {future.task_run_id: SubmittedShard(planned, future)}
    return ShardQueue(runner=make_runner(count=2), workers=1, running=running)


def ranges(shards):
    return [(shard.start, shard.stop) for shard in shards]


@pytest.mark.parametrize(
    ("start", "stop", "parts", "expected"),
    [
        (0, 9, 3, [(0, 3), (3, 6), (6, 9)]),
        (4, 9, 2, [(4, 6), (6, 9)]),
        (4, 6, 2, [(4, 5), (5, 6)]),
        (4, 6, 1, [(4, 6)]),
    ],
)
def test_a_shard_is_divided_into_nearly_equal_parts(start, stop, parts, expected):
    shard = Shard(dataset="nowhere", run=1, number=1, total=1, start=start, stop=stop)
    assert ranges(divide(shard, parts)) == expected


def test_an_idle_node_gets_inputs_of_the_running_shard(planned, control, queue):
    queue.rebalance(2, 100.0)
    queue.rebalance(2, 104.9)
    assert not control.split_requested(1, planned.key), "the shard may end in a moment"
    queue.rebalance(2, 105.0)
    assert control.split_requested(1, planned.key)
    queue.rebalance(2, 106.0)
    assert queue.waiting == [], "the shard has not answered"

    control.record_split(1, planned.key, 12)
    queue.rebalance(2, 107.0)
    (kept,) = queue.running.values()
    assert ranges([kept.shard]) == [(0, 12)]
    assert kept.shard.key == planned.key, "the key names its files in the ledger"
    assert ranges(queue.waiting) == [(12, 16), (16, 20)]
    assert all(shard.split_off for shard in queue.waiting)


def test_a_task_run_is_split_once(planned, control, queue, monkeypatch):
    requests = []
    monkeypatch.setattr(shard_queue, "ask_to_split", requests.append)
    queue.rebalance(2, 0.0)
    queue.rebalance(2, 5.0)
    control.record_split(1, planned.key, planned.stop)
    queue.rebalance(2, 6.0)
    assert queue.waiting == [], "the shard had begun all of its inputs"
    for now in (7.0, 12.0, 17.0):
        queue.rebalance(2, now)
    assert requests == [planned]


@pytest.mark.parametrize("case", ["no idle node", "a waiting shard", "as many inputs as workers"])
def test_no_split_is_requested(planned, control, queue, commit, case):
    slots = 1 if case == "no idle node" else 2
    if case == "a waiting shard":
        queue.waiting.append(planned)
    if case == "as many inputs as workers":
        commit(planned, 0, 18)
        queue.workers = 2
    for now in (0.0, 5.0, 10.0):
        queue.rebalance(slots, now)
    assert not control.split_requested(1, planned.key)


@pytest.mark.parametrize(("answer", "expected"), [(None, []), (15, [(15, 17), (17, 20)])])
def test_a_split_just_before_the_end_of_a_shard_is_kept(
    planned, control, queue, future, answer, expected
):
    queue.rebalance(2, 0.0)
    queue.rebalance(2, 5.0)
    if answer is not None:
        control.record_split(1, planned.key, answer)
    removed = queue.remove(future.task_run_id)
    assert removed.shard.stop == (answer or planned.stop)
    assert queue.running == {}
    assert ranges(queue.waiting) == expected
    queue.rebalance(2, 6.0)  # No request is pending, so the shard's files are not read.
