"""The end of a run reads a ledger with many parts a few times only, and writes tables once."""

from collections import Counter
from functools import partial

import pytest
from copying_job import CopyingJob

import batchmill.runs.run
from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.cleanup import compact
from batchmill.maintenance.verify import verify
from batchmill.planning.prepare import prepare
from batchmill.runs.execute import execute
from batchmill.runs.runner import InThisProcess


class ManyParts(InThisProcess):
    """Leaves one part per input, as a long run does."""

    def run(self, run, shards, num_workers):
        ended = super().run(run, shards, num_workers)
        names = run.ledger.part_names(run.number)
        records = run.ledger.records(run=run.number)
        for row in range(len(records)):
            run.ledger.rewrite_records(run.number, records.slice(row, 1))
        run.ledger.delete_parts(names)
        self.names = run.ledger.part_names()
        return ended


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 6)


def tables(job):
    """Return the inode of each table. A table that is written again has another one."""
    return [
        path.stat().st_ino for path in sorted(job.dataset.glob("*.*")) if path.suffix != ".html"
    ]


def test_each_part_of_a_long_run_is_read_twice_at_its_end(job, monkeypatch):
    monkeypatch.setattr(batchmill.runs.run, "compact", partial(compact, many=2))
    read = Counter()
    real = Ledger.read_part

    def count(ledger, name, columns=None):
        read[name] += 1
        return real(ledger, name, columns)

    class Counting(ManyParts):
        def run(self, *arguments):
            ended = super().run(*arguments)
            monkeypatch.setattr(Ledger, "read_part", count)
            return ended

    runner = Counting()
    execute(prepare(job.job()), runner)
    assert len(runner.names) == 6
    assert {read[name] for name in runner.names} == {2}
    assert len(job.ledger.part_names()) == 1
    assert list(verify(job.ledger, hash_files=True)) == []


def test_an_idle_run_after_a_compaction_writes_no_table(job, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(batchmill.runs.run, "compact", partial(compact, many=2))
        execute(prepare(job.job()), ManyParts())
    before = tables(job)
    assert job.run() == 0
    assert tables(job) == before


def test_an_idle_run_compacts_nothing(job, monkeypatch):
    execute(prepare(job.job()), ManyParts())
    before = tables(job), job.ledger.part_names()
    monkeypatch.setattr(batchmill.runs.run, "compact", partial(compact, many=2))
    assert job.run() == 0
    assert (tables(job), job.ledger.part_names()) == before


def test_an_idle_run_after_a_change_of_the_partitions_writes_no_table(job):
    for shares in ("train=0.5,test=0.5", "train=0.2,test=0.8"):
        job.run(options={"partition": shares})
    before = tables(job)
    assert job.run(options={"partition": shares}) == 0
    assert tables(job) == before
