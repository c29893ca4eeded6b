"""A shard commits often at its beginning, and less often in a long run."""

import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest

from batchmill import StoreError
from batchmill.core.ledger import committer
from batchmill.core.ledger.committer import Committer
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.parts import Origin
from batchmill.core.outcome import Outcome
from batchmill.core.storage import LocalStore


def commits_of(monkeypatch, ticks):
    """Return when a shard commits that has an outcome every two seconds."""
    clock, committed, ended = [0.0], [], threading.Event()
    monkeypatch.setattr(committer, "COMMIT_SECONDS", 0.0001)
    monkeypatch.setattr(committer, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    ledger = SimpleNamespace(commit=lambda *_: None)  # Hundreds of files would need a fast disk.
    outcome = Outcome("a", "id", "ok", 1, 0.5, 1.0, "host")

    def tick():
        clock[0] += 2.0
        if clock[0] >= 2.0 * ticks:
            ended.set()
        else:
            shard.add([outcome])

    def commit(outcomes):
        committed.append(clock[0])
        return outcomes

    shard = Committer(ledger, "000001-x", commit, tick)
    shard.add([outcome])
    with shard:
        while not ended.wait(1):
            shard.add([])  # Raises the error of a failed commit.
    return committed


def test_a_short_shard_commits_every_two_seconds(monkeypatch):
    commits = commits_of(monkeypatch, ticks=100)
    assert commits == [2.0 * tick for tick in range(100)]


def test_a_long_shard_commits_less_often(monkeypatch):
    commits = commits_of(monkeypatch, ticks=3600)
    gaps = [(late, late - early) for early, late in pairwise(commits)]
    assert len(commits) < 600, "in two hours"
    assert all(gap <= max(4.0, late / 100 + 2) for late, gap in gaps)
    assert max(gap for _, gap in gaps) == 30.0


@pytest.fixture
def lazy_shard(tmp_path, monkeypatch):
    """A shard that commits only if there is much to commit, and at its end."""
    monkeypatch.setattr(committer, "COMMIT_SECONDS", 60.0)
    ledger = Ledger(LocalStore(tmp_path))
    ledger.create()

    def records_of(outcomes):
        return [(outcome, Origin("{}", "step", 1)) for outcome in outcomes]

    return Committer(ledger, "000001-x", records_of, lambda: None)


def outcome_of(name):
    return Outcome(name, f"id-{name}", "ok", 1, 0.5, 1.0, "host", rows="[{}]")


@pytest.mark.parametrize(("limit", "value"), [("COMMIT_INPUTS", 2), ("COMMIT_BYTES", 8)])
def test_many_outcomes_are_committed_at_once_and_the_others_at_the_end(
    lazy_shard, monkeypatch, limit, value
):
    monkeypatch.setattr(committer, limit, value)
    batches, has_committed = [], threading.Event()

    before = lazy_shard.records_of

    def records_of(outcomes):
        batches.append([outcome.input for outcome in outcomes])
        has_committed.set()
        return before([outcome for outcome in outcomes if outcome.input != "b"])

    lazy_shard.records_of = records_of
    with lazy_shard:
        for name in "ab":
            lazy_shard.add([outcome_of(name)])
        assert has_committed.wait(30)
        lazy_shard.add([outcome_of("c")])
    assert batches == [["a", "b"], ["c"]]
    assert sorted(lazy_shard.ledger.records(["input"])["input"].to_pylist()) == ["a", "c"]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_an_error_of_a_commit_ends_the_shard_but_hides_no_other_error(lazy_shard, error):
    def fail(_):
        raise StoreError("bucket", "is full.")

    def work():
        lazy_shard.add([outcome_of("a")])
        if error:
            raise error

    lazy_shard.records_of = fail
    with pytest.raises(error or StoreError), lazy_shard:
        work()
    with pytest.raises(StoreError, match="is full"):
        lazy_shard.add([outcome_of("b")])
    assert lazy_shard.ledger.part_names() == []
