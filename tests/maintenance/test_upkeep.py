"""The end of a run changes records of earlier runs in one part, and its order is never random."""

import os
from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from copying_job import CopyingJob

import batchmill
from batchmill.layout import UPKEEP
from batchmill.ledger.parts import PART_SCHEMA
from batchmill.maintenance.verify import examine
from batchmill.maintenance.versions import keep_version


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 4)


def upkeep_parts(job):
    names = [name.removeprefix(UPKEEP) for name in job.ledger.part_names() if UPKEEP in name]
    return Counter(int(name.partition("-")[0]) for name in names)


def test_an_earlier_result_is_removed_in_the_run_in_which_its_input_fails(job):
    """With two parts, a random name decided which one won. So this is tried several times."""
    bad = job.path("00001.txt")
    for turn in range(6):
        bad.write_text(f"good {turn}")
        job.run()
        bad.write_bytes(b"\xff")
        job.run(prune_failed=True)
        rows = pd.read_parquet(job.dataset / "metadata.parquet")
        assert "in/00001.txt" not in set(rows["input"])
    assert set(upkeep_parts(job).values()) == {1}


def test_an_input_that_waits_for_a_retry_keeps_its_result_and_its_turn(job):
    job.run()
    for name in ("00000.txt", "00001.txt"):
        job.path(name).write_bytes(b"\xff")
    job.run()
    batchmill.retry(job.dataset)
    job.run(prune_failed=True, options={"sample": 1})
    assert (job.summary.executed, job.summary.outcomes["failed"]) == (1, 1)
    assert job.reasons() == {"unchanged": 2, "quarantined": 1, "retry": 1}
    assert len(pd.read_parquet(job.dataset / "metadata.parquet")) == 3


def test_all_changes_of_a_run_are_one_part(job):
    job.run()
    job.path("00000.txt").touch()
    job.path("00001.txt").write_bytes(b"\xff")
    job.names.remove("00002.txt")
    job.list()
    job.run(prune=True, prune_failed=True)
    assert upkeep_parts(job) == {2: 1}
    assert set(job.ledger.records(["input"])["input"].to_pylist()) == {
        "in/00000.txt",
        "in/00001.txt",
        "in/00003.txt",
    }
    assert job.reasons() == {"unchanged": 2, "quarantined": 1}


def test_each_state_of_an_input_is_recorded_once(job):
    job.run()
    job.path("00003.txt").write_bytes(b"\xff")
    job.run()
    missing = f"{job.path('00001.txt')}: no such file."
    failed = states_of(job)[3]
    assert failed[1]

    def list_only(*names):
        job.names = list(names)
        job.list()

    everything = tuple(job.names)
    for change, second, last in (
        (lambda: os.utime(job.path("00000.txt"), (1, 1)), (None, ""), failed),
        (lambda: job.path("00001.txt").rename("away"), ("missing", missing), failed),
        (lambda: list_only(*everything[:2]), ("missing", missing), ("withdrawn", failed[1])),
        (lambda: Path("away").rename(job.path("00001.txt")), (None, ""), ("withdrawn", failed[1])),
        (lambda: list_only(*everything), (None, ""), failed),
    ):
        change()
        job.run()
        assert states_of(job)[0] == (None, "")
        assert (states_of(job)[1], states_of(job)[3]) == (second, last)
        parts = job.ledger.part_names()
        job.run()
        assert job.ledger.part_names() == parts, "nothing has changed since"
    times = job.ledger.records(["input", "mtime_ns"]).sort_by("input")["mtime_ns"]
    assert times[0].as_py() == 10**9


def states_of(job):
    """Return the absence and the message of each input, in the order of their names."""
    records = job.ledger.records(["input", "absence", "message"]).sort_by("input").to_pydict()
    return list(zip(records["absence"], records["message"], strict=True))


def test_the_last_part_that_a_run_wrote_wins(job):
    job.run()
    ledger = job.ledger
    records = ledger.all_records(PART_SCHEMA.names).select(PART_SCHEMA.names)
    for seconds in range(20):
        column = pa.repeat(pa.scalar(float(seconds)), len(records))
        place = records.schema.get_field_index("seconds")
        ledger.rewrite_records(1, records.set_column(place, "seconds", column))
        assert pc.unique(ledger.records(["seconds"])["seconds"]).to_pylist() == [seconds]


@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}], ids=["files", "packs"])
def test_a_version_names_no_file_of_an_input_that_its_manifest_did_not_list(job, options):
    job.run(options=options)
    job.names.remove("00002.txt")
    job.list()
    job.path("00000.txt").write_text("changed")
    job.run(options=options)
    keep_version(job.ledger, 2, "v")
    job.run(options=options, prune=True, keep_versions=0)
    assert examine(job.ledger, version="v", hash_files=True) == []
    assert examine(job.ledger, hash_files=True) == []
    assert "in/00002.txt" not in job.ledger.records(["input"])["input"].to_pylist()
    # A pack may contain only the output of the input that is not listed.
    files = (job.dataset / "packs").iterdir() if options else [job.output("00003.txt")]
    for path in list(files):
        path.unlink()
    assert {found.kind for found in examine(job.ledger, version="v")} == {"missing"}
