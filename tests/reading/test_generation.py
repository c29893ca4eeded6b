"""A dataset that is open returns no files of a later run."""

import os
import pickle
from contextlib import suppress

import pytest
from crashing import in_child
from jobs import job_of, run_job

from batchmill import StoreError, open_dataset
from batchmill.ledger.ledger import Ledger
from batchmill.maintenance.verify import verify
from batchmill.options.failure_policy import FailurePolicy
from batchmill.planning.batching import Batching, Cores
from batchmill.planning.prepare import prepare
from batchmill.publishing.publish import publish_changes
from batchmill.runs.run import open_run
from batchmill.shards.run_shard import run_shard
from batchmill.storage import LocalStore

STEP = """
def mark(source, out, version=1):
    (out / "mark.txt").write_text(f"{version} {source.read_text()}")
    return {"output": "mark.txt", "version": version}
"""
AGAIN = "executes its input again"


@pytest.fixture
def out(words, tmp_path, monkeypatch):
    """Return a dataset whose files and rows have the version 1."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "marking.py").write_text(STEP)
    run_job(words / "manifest.csv", "marking:mark", tmp_path / "out", version=1)
    return tmp_path / "out"


def versions(dataset):
    """Return the versions of the rows and of the files, for the samples that can be read."""
    found = set()
    for index in range(len(dataset)):
        with suppress(StoreError):
            sample = dataset[index]
            found.add((sample.version, int(sample.data.split()[0])))
    return found


def test_no_sample_has_a_row_and_a_file_of_different_runs(out, words):
    opened = open_dataset(out, columns=["version"])
    assert versions(opened) == {(1, 1)}
    begun = []
    run_job(
        words / "manifest.csv",
        "marking:mark",
        out,
        before=lambda: begun.append(versions(opened)),
        version=2,
    )
    assert begun == [set()]
    assert versions(opened) == set()


def test_inputs_that_the_later_run_does_not_execute_stay_readable(out, words):
    opened = open_dataset(out, columns=["version"])
    (words / "a.txt").write_text("changed")
    run_job(words / "manifest.csv", "marking:mark", out, version=1)
    with pytest.raises(StoreError, match=AGAIN):
        [opened[index] for index in range(4)]
    assert versions(opened) == {(1, 1)}


def test_files_of_a_killed_run_are_replaced_after_the_step_is_changed_back(
    out, words, tmp_path, monkeypatch
):
    job = job_of(words / "manifest.csv", "marking:mark", out, params={"version": 2})

    def killed():
        with open_run(prepare(job)) as run:
            _, (shard,) = run.divide(
                Batching(num_workers=1), Cores(total=1, node=1), FailurePolicy()
            )
            monkeypatch.setattr(Ledger, "commit", lambda *_: os._exit(9))
            run_shard(shard)

    assert in_child(killed) == 9
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    run_job(words / "manifest.csv", "marking:mark", out, version=1)
    assert versions(open_dataset(out, columns=["version"])) == {(1, 1)}
    assert list(verify(Ledger(LocalStore(out)), hash_files=True)) == []


def test_a_copy_in_another_process_checks_too(out, words):
    copy = pickle.loads(pickle.dumps(open_dataset(out, columns=["version"])))
    run_job(words / "manifest.csv", "marking:mark", out, version=2)
    assert versions(copy) == set()


def test_a_dataset_that_is_opened_during_a_run_has_only_unaffected_samples(out, words):
    (words / "a.txt").write_text("changed")
    found = []
    run_job(
        words / "manifest.csv",
        "marking:mark",
        out,
        before=lambda: found.append(open_dataset(out, columns=["version"])),
        version=1,
    )
    assert versions(found[0]) == {(1, 1)}
    with pytest.raises(StoreError, match=AGAIN):
        [found[0][index] for index in range(4)]


def test_after_the_run_the_dataset_can_be_opened_again(out, words):
    job = job_of(words / "manifest.csv", "marking:mark", out, params={"version": 2})
    with open_run(prepare(job)) as run:
        _, (shard,) = run.divide(Batching(num_workers=1), Cores(total=1, node=1), FailurePolicy())
        run_shard(shard)
        run.finalize()
        assert [found.path for found in verify(Ledger(LocalStore(out)))] == ["metadata.parquet"]
        publish_changes(run.ledger, run.prepared.manifest)
        run.end()
    assert versions(open_dataset(out, columns=["version"])) == {(2, 2)}
    assert list(verify(Ledger(LocalStore(out)))) == []
