"""Verification finds what differs from the ledger, and repair makes the next run correct."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from harness.copying_job import CopyingJob

from batchmill.core.ledger.parts import PART_SCHEMA
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.datasets.maintenance.verify import repair_differences, verify


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 20)


def test_verify_finds_missing_changed_and_unreferenced_files(job):
    job.run()
    assert list(verify(job.ledger, hash_files=True)) == []
    missing, changed, same_size = (job.output(f"0000{n}.txt") for n in range(3))
    missing.unlink()
    changed.write_text("longer than before")
    same_size.write_text("00002.TXT")
    (job.dataset / "files" / "stray").mkdir()
    (job.dataset / "files" / "stray" / "x").touch()
    (missing.parent / "left.txt").touch()
    (job.dataset / "notes.txt").touch()
    found = {(d.kind, Path(d.path).name, d.input) for d in verify(job.ledger)}
    assert found == {
        ("missing", "copy.txt", "in/00000.txt"),
        ("changed", "copy.txt", "in/00001.txt"),
        ("unreferenced", "left.txt", ""),
        ("unreferenced", "stray", ""),
        ("unreferenced", "notes.txt", ""),
    }
    with_hash = list(verify(job.ledger, hash_files=True))
    assert ("changed", "in/00002.txt") in {(d.kind, d.input) for d in with_hash}
    repair_differences(job.ledger, with_hash)
    assert job.run() == 3
    assert list(verify(job.ledger, hash_files=True)) == []
    assert same_size.read_text() == "00002.txt"


def test_a_missing_or_replaced_output_folder_can_be_repaired(job):
    job.run()
    emptied, replaced, linked = (job.output(f"0000{n}.txt").parent for n in range(3))
    (emptied / "copy.txt").unlink()
    for folder in (replaced, linked):
        shutil.rmtree(folder)
    replaced.write_text("a file")
    linked.symlink_to(job.folder / "in")
    (job.output("00003.txt")).unlink()
    job.output("00003.txt").mkdir()
    found = list(verify(job.ledger))
    assert {d.input for d in found if d.kind == "missing"} == {f"in/0000{n}.txt" for n in range(4)}
    repair_differences(job.ledger, found)
    assert job.run() == 4
    assert list(verify(job.ledger, hash_files=True)) == []
    assert len(list((job.folder / "in").iterdir())) == 20, "what the link led to is untouched"


def test_the_empty_folder_of_a_deleted_output_is_not_unreferenced(job):
    job.run()
    job.output("00000.txt").unlink()
    assert [found.kind for found in verify(job.ledger)] == ["missing"]
    job.path("00000.txt").write_text("changed")  # Its new output is in another folder.
    job.run()
    assert list(verify(job.ledger)) == [], "the first version has no other fault"
    for turn in range(2):
        job.path("00001.txt").write_text(f"changed {turn}")
        job.run()
    assert len(list((job.dataset / "files").iterdir())) == 21, "the first version was swept"


def test_a_run_after_the_folders_of_all_runs_were_lost(job):
    """A partial backup may lack them. Outcomes of the next run must win over all earlier ones."""
    for times in (1, 2):
        job.run(times=times)
    shutil.rmtree(job.dataset / ".batchmill" / "runs")
    found = list(verify(job.ledger, hash_files=True))
    assert [(d.kind, d.path) for d in found] == [("missing", ".batchmill/runs/000002")]
    assert job.run(times=3) == 20
    assert job.summary.run == 3
    assert job.output("00000.txt").read_text() == 3 * "00000.txt"
    assert list(verify(job.ledger, hash_files=True)) == []
    assert job.run(times=3) == 0


def test_retry_and_force_work_after_the_folders_of_all_runs_were_lost(job):
    job.run()
    shutil.rmtree(job.dataset / ".batchmill" / "runs")
    job.ledger.release(["in/00000.txt"])
    assert job.reasons() == {"retry": 1, "unchanged": 19}
    assert job.run(force=True) == 20


@pytest.mark.slow
def test_merging_keeps_all_records(job, monkeypatch):
    for number in range(6):
        job.path("00000.txt").write_text(f"version {number}")
        job.run()
    before = records_of(job)
    assert len(job.ledger.state().named_parts) >= 2
    each_time = partial(with_merged_parts, many=1)
    monkeypatch.setattr("batchmill.runs.run.with_merged_parts", each_time)
    job.path("00001.txt").touch()
    assert job.run() == 0, "only a time has changed"
    assert len(job.ledger.state().named_parts) == 1
    assert records_of(job) == before
    last = job.ledger.state().of_run(6)
    assert last.names.to_pylist() == ["in/00000.txt"]
    assert job.run() == 0


def records_of(job):
    """Return all that is recorded of each input, without its times."""
    names = [name for name in PART_SCHEMA.names if name not in ("mtime_ns", "ctime_ns")]
    return job.ledger.records([*names, "result_run", "absence"]).sort_by("input").to_pylist()
