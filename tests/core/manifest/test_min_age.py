"""Test that runs leave out files that another process may still be writing."""

import os
import time

import pandas as pd
import pyarrow as pa
import pytest
from harness.jobs import job_of, run_job
from harness.object_store import upload

from batchmill.core.manifest import load_manifest
from batchmill.core.manifest.file_stats import is_too_young
from batchmill.core.planning.prepare import prepare
from batchmill.errors import ManifestError, OptionError
from batchmill.orchestration.arrivals.detection import list_files

SPLIT = "batchmill.steps.words:split"
LONG_AGO = 7200
LATEST = 2**63 - 1


def write(folder, name, text="word", age=0.0):
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


@pytest.fixture
def source(tmp_path):
    """Return a folder with two old files, a new file, and a file from a wrong clock."""
    folder = tmp_path / "in"
    write(folder, "old.txt", age=LONG_AGO)
    write(folder, "sub/old.txt", age=LONG_AGO)
    write(folder, "new.txt")
    write(folder, "ahead.txt", age=-LONG_AGO)
    return folder


def names(manifest):
    return manifest.inputs["input"].to_pylist()


def test_young_files_of_a_folder_or_glob_are_left_out(source):
    for manifest in (source, str(source / "**" / "*.txt")):
        loaded = load_manifest(manifest, min_age=600)
        assert names(loaded) == ["ahead.txt", "old.txt", "sub/old.txt"]
        assert loaded.too_young.to_pylist() == ["new.txt"]
        assert loaded.manifest_rows() == [{}, {}, {}]
        assert len(load_manifest(manifest)) == 4


def test_young_files_in_a_table_are_read(source):
    (source / "manifest.csv").write_text("input\nnew.txt\nold.txt\n")
    loaded = load_manifest(source / "manifest.csv", min_age=600)
    assert names(loaded) == ["new.txt", "old.txt"]
    assert len(load_manifest([str(source / "new.txt")], min_age=600)) == 1


def test_objects_in_a_bucket_have_no_minimum_age(source, bucket):
    upload(source, f"{bucket}/in")
    assert len(load_manifest(f"{bucket}/in", min_age=600)) == 4


def test_a_folder_with_only_young_files_is_rejected(tmp_path):
    write(tmp_path / "in", "a.txt")
    write(tmp_path / "in", "b.txt")
    with pytest.raises(ManifestError, match="2 files are younger than --min-age 600"):
        load_manifest(tmp_path / "in", min_age=600)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_an_invalid_minimum_age_is_rejected(source, seconds):
    with pytest.raises(OptionError, match="--min-age"):
        job_of(source, SPLIT, "out", min_age=seconds)
    with pytest.raises(OptionError, match="--min-age"):
        load_manifest(source, min_age=seconds)


def test_min_age_changes_neither_the_step_nor_earlier_results(source, tmp_path):
    out = tmp_path / "out"
    run_job(source, SPLIT, out)
    write(source, "new.txt", "another")
    job = job_of(source, SPLIT, out, min_age=600)
    plan = prepare(job).plan
    assert (plan.counts["unchanged"], len(plan.pending)) == (3, 0)
    # The file exists, but another process is writing it.
    assert plan.counts["withdrawn"] == 0
    all_of_it = prepare(job_of(source, SPLIT, out))
    assert all_of_it.plan.first("changed", 5) == ["new.txt"]


def test_young_files_are_not_pruned(source):
    with pytest.raises(OptionError, match="--prune and --min-age"):
        job_of(source, SPLIT, "out", min_age=600, prune=True)
    job_of(source, SPLIT, "out", min_age=600)
    job_of(source, SPLIT, "out", prune=True)


def test_a_broken_link_is_a_missing_input(tmp_path):
    write(tmp_path / "in", "a.txt")
    write(tmp_path / "in", "b.txt")
    (tmp_path / "in" / "self").symlink_to(tmp_path / "in" / "self")
    (tmp_path / "in" / "gone").symlink_to(tmp_path / "gone")
    (tmp_path / "in" / "above").symlink_to(tmp_path / "in")
    for manifest in (tmp_path / "in", str(tmp_path / "in" / "*")):
        assert names(load_manifest(manifest)) == ["a.txt", "b.txt", "gone", "self"]
        summary = run_job(manifest, SPLIT, tmp_path / f"out-{len(str(manifest))}")
        assert summary.outcomes == {"ok": 2, "missing": 2}


def test_an_unrecordable_time_becomes_the_nearest_recordable_time(source, tmp_path):
    for name in ("old.txt", "ahead.txt"):
        os.utime(source / name, ns=(0, 12 * 10**18))
    assert (source / "old.txt").stat().st_mtime_ns > LATEST, "the file system has no such times"
    loaded = load_manifest(source, min_age=600)
    assert names(loaded) == ["ahead.txt", "old.txt", "sub/old.txt"]
    assert loaded.inputs["mtime_ns"].to_pylist()[:2] == [LATEST, LATEST]
    assert list_files(str(source))["old.txt"].mtime_ns == LATEST
    assert run_job(source, SPLIT, tmp_path / "out").outcomes == {"ok": 4}
    assert run_job(source, SPLIT, tmp_path / "out").executed == 0
    early = pa.table({"mtime_ns": [-LATEST - 1], "size": [4]})
    assert is_too_young(early, 600).to_pylist() == [False]


def test_a_file_that_comes_back_is_in_the_table_before_it_is_old_enough(source, tmp_path):
    job, out = (source, SPLIT, tmp_path / "out"), tmp_path / "out" / "metadata.csv"
    run_job(*job)
    aside = (source / "old.txt").rename(tmp_path / "old.txt")
    run_job(*job)
    assert "old.txt" not in set(pd.read_csv(out)["input"])
    write(source, "old.txt", aside.read_text())
    summary = run_job(*job, options={"min_age": 600})
    assert summary.executed == 0
    assert "old.txt" in set(pd.read_csv(out)["input"])


def test_a_folder_that_is_being_filled_is_too_young(tmp_path):
    """It may still be empty, and a file that is copied may keep its old time."""
    for name in ("old", "new", "empty", "deep/a/b"):
        (tmp_path / "in" / name).mkdir(parents=True)
    for name in ("old", "new", "deep/a/b"):
        write(tmp_path / "in", f"{name}/a.txt", age=LONG_AGO)
    then = time.time() - LONG_AGO
    for name in ("old", "deep", "deep/a/b"):
        os.utime(tmp_path / "in" / name, (then, then))
    manifest = load_manifest(tmp_path / "in", folders=True, min_age=60)
    assert manifest.inputs["input"].to_pylist() == ["old"]
    assert sorted(manifest.too_young.to_pylist()) == ["deep", "empty", "new"]
