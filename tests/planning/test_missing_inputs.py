"""A manifest whose inputs mostly do not exist is rejected before anything starts."""

import os

import pytest
from jobs import job_of, run_job

from batchmill import ManifestError
from batchmill.planning.prepare import prepare

SPLIT = "batchmill.steps.words:split"


@pytest.mark.parametrize(("missing", "total"), [(5, 5), (3, 5), (1, 1)])
def test_a_job_whose_inputs_mostly_do_not_exist_is_rejected(tmp_path, missing, total):
    manifest = write_manifest(tmp_path, missing, total)
    message = rf"{missing} of {total} inputs do not exist. The first one is {tmp_path}/0.txt. Check"
    with pytest.raises(ManifestError, match=message):
        prepare(job_of(manifest, SPLIT, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    summary = run_job(manifest, SPLIT, tmp_path / "out", options={"allow_missing": True})
    assert summary.outcomes.get("missing") == missing


def test_a_job_with_some_missing_inputs_runs(tmp_path):
    summary = run_job(write_manifest(tmp_path, 2, 4), SPLIT, tmp_path / "out")
    assert summary.outcomes == {"ok": 2, "missing": 2}


def test_a_job_whose_inputs_were_removed_later_keeps_its_outcomes(tmp_path):
    manifest = write_manifest(tmp_path, 0, 3)
    assert run_job(manifest, SPLIT, tmp_path / "out").outcomes == {"ok": 3}
    for number in range(3):
        os.unlink(tmp_path / f"{number}.txt")
    with pytest.raises(ManifestError, match="3 of 3 inputs do not exist"):
        prepare(job_of(manifest, SPLIT, tmp_path / "out"))


def write_manifest(folder, missing, total):
    """Write a manifest. The first `missing` of its inputs do not exist."""
    names = [f"{number}.txt" for number in range(total)]
    for name in names[missing:]:
        (folder / name).write_text("word")
    (folder / "manifest.csv").write_text("\n".join(["input", *names]))
    return folder / "manifest.csv"
