"""Verification finds what differs from the ledger, and repair makes the next run correct."""

import shutil
from pathlib import Path

import pytest
from copying_job import CopyingJob

from batchmill.maintenance.cleanup import compact
from batchmill.maintenance.verify import repair_differences, verify
from batchmill.planning.prepare import prepare
from batchmill.runs.run import open_run


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
def test_compaction_keeps_all_records(job):
    for number in range(6):
        job.path("00000.txt").write_text(f"version {number}")
        job.run()
    before = job.ledger.records().sort_by("input")
    assert len(job.ledger.part_names()) >= 6
    with open_run(prepare(job.job())) as run:
        compact(job.ledger, run.number, many=2)
    assert len(job.ledger.part_names()) == 1
    assert job.ledger.records().sort_by("input") == before
    assert job.ledger.records(run=6)["input"].to_pylist() == ["in/00000.txt"]
    assert job.run() == 0
