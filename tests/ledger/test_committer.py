"""A shard commits often at its beginning, and less often in a long run."""

import threading
from itertools import pairwise
from types import SimpleNamespace

from batchmill.ledger import committer
from batchmill.ledger.committer import Committer
from batchmill.ledger.ledger import Ledger
from batchmill.ledger.parts import Origin
from batchmill.outcome import Outcome
from batchmill.storage import LocalStore


def commits_of(folder, monkeypatch, ticks):
    """Return when a shard commits that has an outcome every two seconds."""
    clock, committed, ended = [0.0], [], threading.Event()
    monkeypatch.setattr(committer, "COMMIT_SECONDS", 0.0001)
    monkeypatch.setattr(committer, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    ledger = Ledger(LocalStore(folder))
    ledger.create()
    outcome = Outcome("a", "id", "ok", 1, 0.5, 1.0, "host")
    origins = {"a": Origin("{}", "step", 1)}

    def tick():
        clock[0] += 2.0
        if clock[0] >= 2.0 * ticks:
            ended.set()
        else:
            shard.add([outcome])

    def commit(outcomes):
        committed.append(clock[0])
        return outcomes

    shard = Committer(ledger, "000001-x", origins, commit, tick)
    shard.add([outcome])
    with shard:
        assert ended.wait(60)
    return committed


def test_a_short_shard_commits_every_two_seconds(tmp_path, monkeypatch):
    commits = commits_of(tmp_path, monkeypatch, ticks=100)
    assert commits == [2.0 * tick for tick in range(100)]


def test_a_long_shard_commits_less_often(tmp_path, monkeypatch):
    commits = commits_of(tmp_path, monkeypatch, ticks=3600)
    gaps = [(late, late - early) for early, late in pairwise(commits)]
    assert len(commits) < 600, "in two hours"
    assert all(gap <= max(4.0, late / 100 + 2) for late, gap in gaps)
    assert max(gap for _, gap in gaps) == 30.0
