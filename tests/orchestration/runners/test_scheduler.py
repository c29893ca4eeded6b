"""The scheduler submits shards, collects how they ended, and stops on request."""

from dataclasses import astuple

import pytest
from prefect.states import Completed, Crashed, Failed

from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import open_store
from batchmill.errors import RunError, StoreError
from batchmill.orchestration.runners import scheduler as scheduling
from batchmill.orchestration.runners.scheduler import ShardScheduler
from batchmill.runs.shards.shard import Shard
from batchmill.runs.workers.inputs_in_progress import History


def shards_of(count):
    return [
        Shard(dataset="nowhere", run=1, number=number, total=count, start=number, stop=number + 1)
        for number in range(count)
    ]


def scheduler_of(
    runner, *, on_tick=lambda: False, cancelled=lambda: False, losses_allowed=50, most=None
):
    return ShardScheduler(
        runner=runner,
        workers=1,
        on_tick=on_tick,
        cancelled=cancelled,
        losses_allowed=losses_allowed,
        most=most,
    )


def types_of(scheduler):
    return [end.state.type.value for end in scheduler.queue.ends]


def limited_runner(make_runner, slots, most):
    """Return a runner on which all shards end at once, and at most `most` run at a time."""
    running = []

    def execute(shard):
        running.append(shard)
        assert len(running) <= most

    runner = make_runner(execute, count=slots)

    def end_all(futures, seconds):
        for future in futures:
            future.state = Completed()
        running.clear()
        return futures

    runner.wait = end_all
    return runner


def test_shards_are_submitted_in_order_and_at_most_two_for_each_slot(make_runner):
    runner = limited_runner(make_runner, slots=2, most=4)
    scheduler = scheduler_of(runner)
    scheduler.run(shards_of(10))
    assert [shard.number for shard in runner.submitted] == list(range(10))
    assert types_of(scheduler) == ["COMPLETED"] * 10
    assert (scheduler.loss_policy.losses, scheduler.queue.ended_early) == (0, [])


def test_shards_that_share_a_rate_are_limited_also_on_new_nodes_and_after_splits(
    make_runner, monkeypatch
):
    """The plan has divided the rate among two shards at a time. Meanwhile, the cluster grows."""
    monkeypatch.setattr(scheduling, "_TICK_SECONDS", 0.0)
    slots = []
    runner = limited_runner(make_runner, slots=8, most=2)
    scheduler = scheduler_of(runner, most=2)
    monkeypatch.setattr(scheduler.queue, "rebalance", lambda found, now: slots.append(found))
    scheduler.run(shards_of(10))
    assert len(runner.submitted) == 10
    assert set(slots) == {2}


def test_an_input_that_kills_its_process_is_found_and_the_others_finish(
    planned, make_runner, commit
):
    ledger = Ledger(open_store(planned.dataset))
    killer = 13

    def execute(shard):
        if not shard.start <= killer < shard.stop:
            commit(shard, shard.start, shard.stop)
            return Completed()
        # A shard of one input records it before it begins.
        before = ledger.control.read_attempts(shard.run).get(killer, (0,))
        seen = History(before[0] + (shard.left == 1))
        ledger.control.record_attempts(shard.run, shard.key, {killer: astuple(seen)})
        return Crashed(message="killed")

    scheduler = scheduler_of(make_runner(execute))
    scheduler.run([planned])
    outcomes = ledger.outcomes(planned.run).table.to_pylist()
    assert {row["input"]: row["outcome"] for row in outcomes} == {
        f"{number:02d}.txt": "crashed" if number == killer else "ok" for number in range(20)
    }
    assert [row["attempts"] for row in outcomes if row["outcome"] == "crashed"] == [2]
    assert scheduler.queue.ended_early == []
    assert types_of(scheduler).count("CRASHED") == scheduler.loss_policy.losses


def test_the_reason_why_a_shard_failed_is_kept(make_runner):
    message = "Task run encountered an exception StoreError: no room\ndetails"
    scheduler = scheduler_of(make_runner(lambda shard: Failed(message=message)))
    scheduler.run(shards_of(1))
    assert scheduler.queue.ended_early == ["shard 0/1, 1 inputs ended early: StoreError: no room"]
    assert types_of(scheduler) == ["FAILED"]


def test_a_shard_that_a_node_refused_runs_on_another_one(make_runner):
    states = iter([Crashed(name="UnfitNode", message="no step"), Completed()])
    runner = make_runner(lambda shard: next(states))
    scheduler = scheduler_of(runner, losses_allowed=0)
    scheduler.run(shards_of(1))
    assert [shard.attempt for shard in runner.submitted] == [1, 2]
    assert types_of(scheduler) == ["CRASHED", "COMPLETED"]
    assert (scheduler.loss_policy.losses, scheduler.queue.ended_early) == (0, [])


def test_once_on_tick_returns_true_nothing_is_submitted(make_runner, monkeypatch):
    monkeypatch.setattr("batchmill.orchestration.runners.scheduler._TICK_SECONDS", 0.0)
    runner = make_runner(lambda shard: Completed())
    scheduler = scheduler_of(runner, on_tick=lambda: True)
    scheduler.run(shards_of(3))
    assert runner.submitted == []


def test_shards_that_do_not_end_after_a_cancellation_are_killed(make_runner, monkeypatch):
    monkeypatch.setattr(scheduling, "_GRACE_SECONDS", -1.0)
    monkeypatch.setattr(scheduling, "_KILL_REPORT_SECONDS", 0.5)
    runner = make_runner()
    cancelled = []
    runner.wait = lambda futures, seconds: cancelled.append(True) or []
    scheduler = scheduler_of(runner, cancelled=lambda: bool(cancelled))
    scheduler.run(shards_of(1))
    assert len(runner.killed) == 1
    assert types_of(scheduler) == ["CANCELLED"]


@pytest.mark.parametrize(
    ("error", "message", "killed"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt", 1),
        (StoreError("s3://b", "no answer"), "s3://b: no answer", 1),
        (RunError("the runner is lost"), "the runner is lost", 0),
    ],
)
def test_an_error_ends_the_running_shards_as_crashed(make_runner, error, message, killed):
    runner = make_runner()

    def wait(futures, seconds):
        raise error

    runner.wait = wait
    scheduler = scheduler_of(runner)
    with pytest.raises(type(error)):
        scheduler.run(shards_of(1))
    assert [(end.state.type.value, end.state.message) for end in scheduler.queue.ends] == [
        ("CRASHED", message)
    ]
    assert len(runner.killed) == killed
