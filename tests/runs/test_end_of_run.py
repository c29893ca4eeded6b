"""The end of a run reads a ledger with many parts a few times only, and writes tables once."""

from collections import Counter
from functools import partial

import pyarrow as pa
import pytest
from harness.copying_job import CopyingJob

import batchmill.runs.run
from batchmill.core.layout import PARTS
from batchmill.core.ledger.parts import PART_SCHEMA, write_hashed
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.datasets.maintenance.verify import verify
from batchmill.runs.execute import InThisProcess, execute


class ManyParts(InThisProcess):
    """Leaves one part per input, as a long run does."""

    def run(self, run, shards, num_workers):
        ended = super().run(run, shards, num_workers)
        ledger, names = run.ledger, run.ledger.part_names(run.number)
        records = pa.concat_tables(ledger.read_part(name) for name in names).cast(PART_SCHEMA)
        for row in range(len(records)):
            place = f"{PARTS}/{run.number:06d}-single-{row:05d}"
            write_hashed(ledger.store, place, records.slice(row, 1))
        for name in names:
            ledger.store.delete(f"{PARTS}/{name}")
        self.names = ledger.part_names()
        return ended


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 6)


def merge_from_two(monkeypatch):
    """Let runs merge two parts already."""
    merge = partial(with_merged_parts, many=2)
    monkeypatch.setattr(batchmill.runs.run, "with_merged_parts", merge)


def tables(job):
    """Return the inode of each table. A table that is written again has another one."""
    return [
        path.stat().st_ino for path in sorted(job.dataset.glob("*.*")) if path.suffix != ".html"
    ]


def test_each_part_of_a_long_run_is_opened_three_times_at_its_end(job, monkeypatch):
    merge_from_two(monkeypatch)
    read = Counter()
    real = LocalStore.open

    def count(store, name):
        read[name.removeprefix(f"{PARTS}/")] += 1
        return real(store, name)

    class Counting(ManyParts):
        def run(self, *arguments):
            ended = super().run(*arguments)
            monkeypatch.setattr(LocalStore, "open", count)
            return ended

    runner = Counting()
    execute(prepare(job.job()), runner)
    assert len(runner.names) == 6
    assert {read[name] for name in runner.names} == {3}  # Two reads, and a count of rows.
    assert len(job.ledger.part_names()) == 1
    assert list(verify(job.ledger, hash_files=True)) == []


def test_an_idle_run_after_a_merge_writes_no_table(job, monkeypatch):
    with monkeypatch.context() as patched:
        merge_from_two(patched)
        execute(prepare(job.job()), ManyParts())
    before = tables(job)
    assert job.run() == 0
    assert tables(job) == before


def test_an_idle_run_merges_nothing(job, monkeypatch):
    execute(prepare(job.job()), ManyParts())
    before = tables(job), job.ledger.part_names()
    merge_from_two(monkeypatch)
    assert job.run() == 0
    assert (tables(job), job.ledger.part_names()) == before


def test_an_idle_run_after_a_change_of_the_partitions_writes_no_table(job):
    for shares in ("train=0.5,test=0.5", "train=0.2,test=0.8"):
        job.run(options={"partition": shares})
    before = tables(job)
    assert job.run(options={"partition": shares}) == 0
    assert tables(job) == before


def test_a_run_records_whether_its_failures_and_tables_are_accepted(job):
    def accepted(**options):
        job.run(**options)
        return job.ledger.read_summary(job.summary.run)["accepted"]

    assert accepted() is True
    # A run that publishes nothing is not accepted, although no input failed.
    assert accepted(policy=FailurePolicy(expect=["length < 0"]), force=True) is False
    # The outcome of an input that failed before is accepted with `known_failures`.
    known = FailurePolicy(known_failures="ok")
    job.path(job.names[0]).unlink()
    assert accepted() is False
    assert accepted(policy=known) is True
