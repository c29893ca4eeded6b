"""Test what a run does about inputs that do not exist, with and without an earlier result."""

import os
from contextlib import nullcontext
from functools import partial

import pandas as pd
import pytest
from harness.comparison import contents, faults
from harness.jobs import job_of, run_job

import batchmill
from batchmill import ManifestError
from batchmill.core.ledger.open import open_ledger
from batchmill.core.options.failure_policy import FailurePolicy
from batchmill.core.planning.prepare import prepare
from batchmill.datasets.publishing.run_message import failure_message

pytestmark = pytest.mark.slow

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


def test_the_paths_of_windows_are_explained(tmp_path):
    (tmp_path / "m.csv").write_text("input\nsounds\\a.wav\n")
    with pytest.raises(ManifestError, match=r"Write / instead of \\ in the manifest"):
        prepare(job_of(tmp_path / "m.csv", SPLIT, tmp_path / "out"))


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


def test_an_ok_result_stays_if_its_input_cannot_be_found(tmp_path):
    manifest, dataset = write_manifest(tmp_path, 0, 4), tmp_path / "out"
    run_job(manifest, SPLIT, dataset)
    before = contents(dataset)
    os.rename(tmp_path / "0.txt", tmp_path / "away")
    for options in ({}, {"force": True}, {"prune": True}):
        summary = run_job(manifest, SPLIT, dataset, **options)
        assert contents(dataset) == before
        assert summary.outcomes == {"ok": 3, "missing": 1}
        assert not summary.accepted(FailurePolicy())
        assert summary.accepted(FailurePolicy(known_failures="ok"))
        message = failure_message(summary, str(dataset), FailurePolicy())
        assert "batchmill retry" not in message, "no request to retry is needed"
        reason = f"{tmp_path}/0.txt: no such file. Its earlier result stays in the dataset."
        assert f"0.txt: missing: FileNotFoundError: {reason}" in message
        assert failed_inputs(dataset) == {"0.txt": "missing"}
        assert batchmill.retry(dataset) == [], "its file is all that it needs"
        assert "delete their rows from the manifest, and add --prune" in message
    os.rename(tmp_path / "away", tmp_path / "0.txt")
    assert prepare(job_of(manifest, SPLIT, dataset)).plan.counts["unchanged"] == 4
    run_job(manifest, SPLIT, dataset)
    assert failed_inputs(dataset) == {}


def test_the_earlier_result_of_a_failed_input_stays_if_its_file_cannot_be_found(tmp_path):
    manifest, dataset = write_manifest(tmp_path, 0, 4), tmp_path / "out"
    run_job(manifest, SPLIT, dataset)
    (tmp_path / "0.txt").write_bytes(b"\xff")
    assert run_job(manifest, SPLIT, dataset).outcomes == {"ok": 3, "failed": 1}
    before = contents(dataset)
    os.rename(tmp_path / "0.txt", tmp_path / "away")
    for _ in range(2):
        summary = run_job(manifest, SPLIT, dataset, prune_failed=True)
        assert contents(dataset) == before
        assert (summary.outcomes, summary.executed) == ({"ok": 3, "missing": 1}, 0)
        assert summary.accepted(FailurePolicy(known_failures="ok"))
        reason = f"{tmp_path}/0.txt: no such file. Its earlier result stays in the dataset."
        assert summary.failures == (("0.txt", f"missing: FileNotFoundError: {reason}"),)
        assert list(batchmill.failures(dataset)["traceback"]) == [""]
    os.rename(tmp_path / "away", tmp_path / "0.txt")
    assert prepare(job_of(manifest, SPLIT, dataset)).plan.counts["quarantined"] == 1


def test_a_result_whose_input_cannot_be_found_is_removed_with_its_row(tmp_path):
    manifest, dataset = write_manifest(tmp_path, 0, 4), tmp_path / "out"
    run_job(manifest, SPLIT, dataset)
    os.unlink(tmp_path / "0.txt")
    manifest.write_text("input\n1.txt\n2.txt\n3.txt")
    run_job(manifest, SPLIT, dataset, prune=True)
    assert set(pd.read_parquet(dataset / "metadata.parquet")["input"]) == {
        "1.txt",
        "2.txt",
        "3.txt",
    }


class Interrupts(list):
    """Interrupts the run at its first outcome."""

    def append(self, outcome):
        super().append(outcome)
        raise KeyboardInterrupt


@pytest.mark.parametrize("seen", [None, Interrupts()])
def test_a_result_stays_if_its_input_vanishes_during_a_run(tmp_path, seen):
    manifest, dataset = write_manifest(tmp_path, 0, 4), tmp_path / "out"
    run_job(manifest, SPLIT, dataset)
    before = contents(dataset)
    (tmp_path / "0.txt").write_text("another word")
    away = partial(os.rename, tmp_path / "0.txt", tmp_path / "away")
    with pytest.raises(KeyboardInterrupt) if seen is not None else nullcontext():
        summary = run_job(manifest, SPLIT, dataset, before=away, seen=seen)
        assert summary.outcomes == {"ok": 3, "missing": 1}
        assert (summary.executed, summary.results_kept) == (0, 1)
        reason = f"{tmp_path}/0.txt: no such file. Create the file, or remove it from the manifest."
        stays = "Its earlier result stays in the dataset."
        assert summary.failures == (("0.txt", f"missing: FileNotFoundError: {reason} {stays}"),)
    if seen is not None:
        assert open_ledger(str(dataset)).outcomes(2).table["outcome"].to_pylist() == ["missing"]
        run_job(manifest, SPLIT, dataset)
    assert contents(dataset) == before
    assert faults(dataset) == []
    os.rename(tmp_path / "away", tmp_path / "0.txt")
    assert run_job(manifest, SPLIT, dataset).executed == 1


def test_a_withdrawn_input_is_no_failed_input(tmp_path):
    manifest, dataset = write_manifest(tmp_path, 1, 4), tmp_path / "out"
    run_job(manifest, SPLIT, dataset)
    assert failed_inputs(dataset) == {"0.txt": "missing"}
    rows = manifest.read_text()
    manifest.write_text(rows.replace("0.txt\n", ""))
    run_job(manifest, SPLIT, dataset)
    assert failed_inputs(dataset) == {}
    manifest.write_text(rows)
    run_job(manifest, SPLIT, dataset)
    assert failed_inputs(dataset) == {"0.txt": "missing"}


def failed_inputs(dataset):
    """Return the failed inputs with their outcomes, as the call, the table and the result say."""
    found = [
        batchmill.failures(dataset),
        pd.read_csv(dataset / "failures.csv"),
        batchmill.status(dataset).outcomes.query("outcome != 'ok'"),
    ]
    first, *others = [dict(zip(table["input"], table["outcome"], strict=True)) for table in found]
    assert others == [first, first]
    return first


def write_manifest(folder, missing, total):
    """Write a manifest. The first `missing` of its inputs do not exist."""
    names = [f"{number}.txt" for number in range(total)]
    for name in names[missing:]:
        (folder / name).write_text("word")
    (folder / "manifest.csv").write_text("\n".join(["input", *names]))
    return folder / "manifest.csv"
