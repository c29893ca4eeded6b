"""Lost shards are submitted again, halved or ended. Lost nodes are detected."""

from dataclasses import astuple, replace

import pytest
from prefect.states import Crashed

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore, open_store
from batchmill.orchestration.runners.loss_policy import LossPolicy, split_lost
from batchmill.orchestration.runners.shard_queue import ShardQueue, SubmittedShard
from batchmill.runs.shards.shard import Shard
from batchmill.runs.workers.inputs_in_progress import History


def shard_of(dataset="nowhere", start=0, stop=8, **changes):
    return Shard(dataset=str(dataset), run=1, number=1, total=1, start=start, stop=stop, **changes)


def queue_of(runner, **shards):
    return ShardQueue(runner=runner, workers=1, **shards)


@pytest.mark.parametrize(
    ("attempt", "left", "rows", "expected"),
    [
        (1, -1, [], []),
        (1, -1, range(8), [(0, 8, 8)]),
        (2, 8, [3, 5, 6], [(3, 7, 3)]),
        (2, 8, range(8), [(0, 4, 4), (4, 8, 4)]),
        (2, 3, [3, 5, 6], [(3, 4, 1), (5, 7, 2)]),
        (5, 1, [3], [(3, 4, 1)]),
    ],
    ids=["finished", "first loss", "progress", "no progress", "gaps", "alone"],
)
def test_the_next_attempts_of_a_lost_shard(attempt, left, rows, expected):
    shard = shard_of(attempt=attempt, losses=attempt - 1, left=left, given=9)
    parts = split_lost(shard, list(rows))
    assert [(part.start, part.stop, part.inputs) for part in parts] == expected
    assert all(part.attempt == attempt + 1 and part.given == -1 for part in parts)


def test_after_the_allowed_losses_no_shard_is_submitted_again(make_runner, make_future):
    queue = queue_of(make_runner())
    policy = LossPolicy(queue, losses_allowed=0)
    policy.handle_loss(SubmittedShard(shard_of(), make_future()), "killed")
    assert policy.losses == 1
    assert queue.waiting == []
    (reason,) = queue.ended_early
    assert reason == (
        "shard 1/1, 8 inputs lost its process (killed). After 0 losses without a completed shard, "
        "lost shards are not submitted again."
    )
    assert [end.state.type.value for end in queue.ends] == ["CRASHED"]


def test_losses_count_until_a_shard_completes(planned, make_runner, make_future):
    policy = LossPolicy(queue_of(make_runner()), losses_allowed=1)

    def lose(attempt):
        policy.handle_loss(SubmittedShard(replace(planned, attempt=attempt), make_future()), "gone")

    lose(1)
    policy.in_turn = 0  # As after a completed shard.
    lose(2)
    assert policy.queue.ended_early == []
    lose(3)
    (reason,) = policy.queue.ended_early
    assert "lost shards are not submitted again" in reason
    assert policy.losses == 3


@pytest.mark.parametrize("reason", ["its node was lost", "NodeDiedError: Task failed"])
def test_a_lost_node_counts_once_and_never_for_an_input(planned, make_runner, make_future, reason):
    control = Ledger(open_store(planned.dataset)).control
    policy = LossPolicy(queue_of(make_runner()), losses_allowed=1)
    for row in range(20):  # Each input is alone, and has lost its processes before.
        shard = replace(planned, start=row, stop=row + 1, attempt=4, losses=3, left=1)
        control.record_node(shard.run, shard.key, "node")
        control.record_attempts(shard.run, shard.key, {row: astuple(History(99))})
        policy.handle_loss(SubmittedShard(shard, make_future()), reason)
    assert policy.losses == 1
    assert control.read_attempts(planned.run) == {}
    assert [(shard.start, shard.losses) for shard in policy.queue.waiting] == [
        (row, 3) for row in range(20)
    ]
    assert len(Ledger(open_store(planned.dataset)).outcomes(planned.run)) == 0


def test_a_lost_runner_ends_the_waiting_shards_and_is_reported_once(make_runner, make_future):
    queue = queue_of(make_runner(), waiting=[shard_of()])
    policy = LossPolicy(queue, losses_allowed=50)
    for _ in range(2):
        policy.handle_loss(SubmittedShard(shard_of(), make_future()), "lost")
    assert policy.losses == 0
    assert queue.waiting == []
    assert queue.ended_early == ["the runner is lost"]


def test_the_shards_of_a_missing_node_are_lost_after_five_seconds(
    tmp_path, make_runner, make_future
):
    ledger = Ledger(LocalStore(tmp_path))
    there, gone, not_begun = (shard_of(tmp_path, start, start + 2) for start in (0, 2, 4))
    ledger.control.record_node(1, there.key, "a")
    ledger.control.record_node(1, gone.key, "b")
    futures = [make_future() for _ in range(3)]
    shards = (there, gone, not_begun)
    runner = make_runner()
    queue = queue_of(
        runner,
        running={
            future.task_run_id: SubmittedShard(shard, future)
            for shard, future in zip(shards, futures, strict=True)
        },
    )
    policy = LossPolicy(queue, losses_allowed=0)

    runner.nodes = frozenset({"a", "b"})
    policy.fail_lost_nodes(0.0)
    runner.nodes = frozenset({"a"})
    policy.fail_lost_nodes(10.0)
    policy.fail_lost_nodes(14.9)
    assert len(queue.running) == 3

    policy.fail_lost_nodes(15.0)
    assert [submitted.shard for submitted in queue.running.values()] == [there]
    assert {end.state.message for end in queue.ends} == {
        "its node was lost",
        "a node was lost before the shard began",
    }
    assert runner.killed == [futures[2]], "it could still begin elsewhere"
    assert [(shard.start, shard.attempt) for shard in queue.waiting] == [(4, 2)]
    again = make_future()
    queue.running[again.task_run_id] = SubmittedShard(queue.waiting.pop(), again)
    policy.fail_lost_nodes(99.0)
    assert again.task_run_id in queue.running, "a lost node is handled once"


def test_a_node_that_returns_is_not_lost_when_it_disappears_again(
    tmp_path, make_runner, make_future
):
    shard, future, runner = shard_of(tmp_path), make_future(), make_runner()
    Ledger(LocalStore(tmp_path)).control.record_node(1, shard.key, "b")
    queue = queue_of(runner, running={future.task_run_id: SubmittedShard(shard, future)})
    policy = LossPolicy(queue, losses_allowed=0)
    times = [(0.0, "ab"), (1.0, "a"), (2.0, "ab"), (10.0, "a"), (14.9, "a")]
    for now, nodes in times:
        runner.nodes = frozenset(nodes)
        policy.fail_lost_nodes(now)
    assert queue.running, "it has been missing for less than five seconds"
    policy.fail_lost_nodes(15.0)
    assert not queue.running


def test_a_shard_that_never_began_is_not_halved_after_its_first_loss(make_runner, make_future):
    """Any cause may have ended its first process, as for all shards."""
    queue = queue_of(make_runner())
    policy = LossPolicy(queue, losses_allowed=50)
    policy.resubmit(SubmittedShard(shard_of(), make_future()), Crashed(message="a bad node"))
    (moved,) = queue.waiting
    assert moved.key != shard_of().key
    assert len(split_lost(moved, list(range(8)))) == 1
    (again,) = split_lost(moved, list(range(8)))
    assert len(split_lost(again, list(range(8)))) == 2


@pytest.mark.parametrize(
    ("is_elastic", "seconds", "message"),
    [(False, 5.0, "the runner is lost"), (True, 300.0, "could run a shard for 5 min")],
)
def test_a_run_without_nodes_ends(make_runner, make_future, is_elastic, seconds, message):
    future = make_future()
    runner = make_runner()
    runner.is_elastic = is_elastic
    queue = queue_of(runner, running={future.task_run_id: SubmittedShard(shard_of(), future)})
    policy = LossPolicy(queue, losses_allowed=50)
    assert not policy.end_without_nodes(0, 0.0)
    assert not policy.end_without_nodes(1, seconds), "a node is back"
    assert not policy.end_without_nodes(0, 1000.0)
    assert not policy.end_without_nodes(0, 999.0 + seconds)
    assert runner.killed == []
    assert policy.end_without_nodes(0, 1000.0 + seconds)
    assert runner.killed == [future]
    (reason,) = queue.ended_early
    assert message in reason


def test_an_unknown_number_of_slots_is_not_a_lack_of_nodes(make_runner):
    policy = LossPolicy(queue_of(make_runner()), losses_allowed=50)
    assert not any(policy.end_without_nodes(None, now) for now in (0.0, 1000.0))
