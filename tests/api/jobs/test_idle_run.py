"""Runs with nothing to execute are finished without Prefect."""

import pandas as pd
import pytest
from harness.jobs import job_of, run_job

from batchmill.api.jobs.idle_run import NotIdleError, is_idle, run_idle
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.prepare import prepare
from batchmill.runs.run import open_run

STEP = "batchmill.steps.words:split"


def prepared_in(folder, **options):
    job = job_of(folder / "in", STEP, folder / "out", **options)
    return prepare(job)


@pytest.fixture
def done(tmp_path):
    """A folder with a dataset whose only run has ended."""
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.txt").write_text(2 * name)
    run_job(tmp_path / "in", STEP, tmp_path / "out")
    return tmp_path


def test_a_run_after_a_killed_run_is_not_idle(done):
    assert is_idle(prepared_in(done))
    with open_run(prepared_in(done)) as run:
        run.divide(Cores(total=1, node=1))  # The run does not end.
    assert not is_idle(prepared_in(done))


def test_an_idle_run_writes_missing_tables(done):
    (done / "out" / "metadata.parquet").unlink()
    prepared = prepared_in(done)
    assert is_idle(prepared)
    run = run_idle(prepared).run
    summary = prepared.ledger.read_summary(run)
    assert (summary["inputs"], summary["executed"]) == (2, 0)
    table = pd.read_parquet(done / "out" / "metadata.parquet")
    assert sorted(set(table["input"])) == ["a.txt", "b.txt"]
    assert (done / "out" / "report.html").exists()


def test_an_idle_run_prunes(done):
    (done / "in" / "b.txt").unlink()
    run_idle(prepared_in(done, prune=True))
    table = pd.read_parquet(done / "out" / "metadata.parquet")
    assert set(table["input"]) == {"a.txt"}


def test_a_run_is_not_idle_if_inputs_became_pending_meanwhile(done):
    prepared = prepared_in(done)
    (done / "in" / "c.txt").write_text("c")
    prepared.ledger.release(["a.txt"])
    with pytest.raises(NotIdleError):
        run_idle(prepared)


def test_a_run_with_failures_of_earlier_runs_is_idle_and_fails(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"\xff")
    run_job(tmp_path / "in", STEP, tmp_path / "out")
    prepared = prepared_in(tmp_path)
    assert is_idle(prepared)
    ended = run_idle(prepared)
    assert str(ended.error).startswith(
        "1 inputs: 1 failed\n  group 1: a.txt: failed: UnicodeDecode"
    )


def test_a_run_is_idle_if_the_last_one_has_reported_the_missing_file(done):
    (done / "in" / "m.csv").write_text("input\na.txt\nb.txt\n")
    run_job(done / "in" / "m.csv", STEP, done / "out")
    (done / "in" / "b.txt").unlink()

    def prepared():
        return prepare(job_of(done / "in" / "m.csv", STEP, done / "out"))

    assert not is_idle(prepared())
    with pytest.raises(NotIdleError):
        run_idle(prepared())
    run_job(done / "in" / "m.csv", STEP, done / "out")
    assert is_idle(prepared())
    assert "1 missing" in str(run_idle(prepared()).error)
