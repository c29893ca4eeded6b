"""A dataset of an older batchmill is refused in one line, and is not changed."""

import json

import pytest
from harness.copying_job import CopyingJob, snapshot

import batchmill
from batchmill import LedgerError


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Return a job whose dataset has the version of an older ledger."""
    monkeypatch.chdir(tmp_path)
    job = CopyingJob(tmp_path, 2)
    job.run()
    (job.dataset / ".batchmill" / "format.json").write_text(json.dumps({"ledger": 4}))
    return job


@pytest.mark.parametrize(
    "use",
    [
        lambda job: job.run(),
        lambda job: job.run(force=True),
        lambda job: batchmill.open_dataset(job.dataset),
        lambda job: batchmill.verify(job.dataset),
        lambda job: batchmill.versions(job.dataset),
    ],
    ids=["run", "forced run", "open", "verify", "versions"],
)
def test_an_older_dataset_is_refused_and_stays_as_it_is(old, use):
    before = snapshot(old.dataset)
    with pytest.raises(LedgerError, match="has version 4, but this batchmill reads") as error:
        use(old)
    assert str(old.dataset) in str(error.value)
    assert "Install the batchmill that created it" in str(error.value)
    assert "\n" not in str(error.value)
    assert snapshot(old.dataset) == before
