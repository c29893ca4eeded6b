"""The recipe for moves and backups: nothing is executed again after a move."""

import shutil

import pytest
from harness.jobs import run_job
from harness.live import ROOT
from s3fs import S3FileSystem

import batchmill

pytestmark = pytest.mark.slow

STEP = "batchmill.steps.images:resize"


@pytest.fixture
def scans(tmp_path):
    """Return a folder with the inputs `scans` and the dataset `small`."""
    folder = tmp_path / "here"
    shutil.copytree(ROOT / "examples" / "images" / "pictures", folder / "scans")
    assert len(run(folder / "scans", folder / "small")) == 3
    return folder


def run(manifest, dataset, **options):
    """Run the job, and return the names of the inputs that it executed."""
    seen = []
    run_job(manifest, STEP, dataset, seen=seen, width=64, num_workers=1, cores=1, **options)
    assert {one.kind for one in seen} <= {"ok"}
    return sorted(one.input for one in seen)


def test_a_move_executes_nothing(scans, tmp_path):
    moved = shutil.move(scans, tmp_path / "there")
    assert run(moved / "scans", moved / "small") == []
    assert batchmill.verify(moved / "small", hash=True).empty


def test_a_copy_with_new_dates_and_another_root_executes_nothing(scans, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(scans, copy, copy_function=shutil.copyfile)
    shutil.rmtree(scans)
    table = tmp_path / "scans.csv"
    table.write_text("input\nbadge.png\ndepth.png\nsunset.jpg\n")
    assert run(table, copy / "small", options={"root": str(copy / "scans")}) == []


def test_a_copy_in_a_bucket_executes_nothing(scans, bucket):
    place = bucket.removeprefix("s3://")
    S3FileSystem().put(f"{scans}/small/", f"{place}/small/", recursive=True)
    S3FileSystem().put(f"{scans}/scans/", f"{place}/scans/", recursive=True)
    shutil.rmtree(scans / "small")
    assert run(scans / "scans", f"{bucket}/small") == []
    shutil.rmtree(scans)
    assert run(f"{bucket}/scans", f"{bucket}/small") == []
    assert batchmill.verify(f"{bucket}/small", hash=True).empty


def test_a_deleted_output_is_restored_from_a_copy_or_made_again(scans, tmp_path):
    dataset = scans / "small"
    copy = shutil.copytree(dataset, tmp_path / "copy")
    (deleted,) = dataset.glob("files/badge-*")
    shutil.rmtree(deleted)
    assert len(batchmill.verify(dataset, hash=True)) == 1
    shutil.copytree(copy / deleted.relative_to(dataset), deleted)
    assert batchmill.verify(dataset, hash=True).empty
    shutil.rmtree(deleted)
    assert run(scans / "scans", dataset) == ["badge.png"]
    assert batchmill.verify(dataset, hash=True).empty


def test_deleted_tables_are_written_again(scans):
    dataset = scans / "small"
    before = (dataset / "metadata.csv").read_bytes()
    for name in ("metadata.csv", "metadata.parquet", "failures.csv", "report.html"):
        (dataset / name).unlink()
    assert run(scans / "scans", dataset) == []
    assert (dataset / "metadata.csv").read_bytes() == before
    assert batchmill.verify(dataset).empty


def test_pruned_files_stay_until_no_version_names_them(scans):
    dataset = scans / "small"
    (scans / "scans" / "depth.png").unlink()
    run(scans / "scans", dataset, prune=True)
    assert len([*dataset.glob("files/depth-*")]) == 1
    run(scans / "scans", dataset, prune=True, keep_versions=0)
    assert [*dataset.glob("files/depth-*")] == []


def test_a_copy_without_its_ledger_is_refused(scans, tmp_path):
    copy = shutil.copytree(scans / "small", tmp_path / "copy")
    shutil.rmtree(copy / ".batchmill")
    with pytest.raises(batchmill.OptionError, match="contains files, but is not a dataset"):
        run(scans / "scans", copy)
