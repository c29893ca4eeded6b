"""A dataset that is open keeps the files of its version during later runs."""

import os
import pickle
from functools import partial

import pytest
from harness.crashing import in_child
from harness.jobs import job_of, run_job

from batchmill import OptionError, StoreError, open_dataset
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.planning.batching import Cores
from batchmill.core.planning.prepare import prepare
from batchmill.core.storage import LocalStore
from batchmill.datasets.maintenance.cleanup import named_files
from batchmill.datasets.maintenance.merging import with_merged_parts
from batchmill.datasets.maintenance.verify import verify
from batchmill.datasets.publishing.publish import publish_changes
from batchmill.runs import run as run_module
from batchmill.runs.run import open_run
from batchmill.runs.shards.run_shard import run_shard

pytestmark = pytest.mark.slow

STEP = """
def mark(source, out, version=1):
    (out / "mark.txt").write_text(f"{version} {source.read_text()}")
    return {"output": "mark.txt", "version": version}
"""
REMOVED = "the version that was opened does not exist any more"


@pytest.fixture
def out(words, tmp_path, monkeypatch):
    """Return a dataset whose files and rows have the version 1."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "marking.py").write_text(STEP)
    run_job(words / "manifest.csv", "marking:mark", tmp_path / "out", version=1)
    return tmp_path / "out"


def versions(dataset):
    """Return the versions of the rows and of the files of all samples."""
    return {(sample.version, int(sample.data.split()[0])) for sample in dataset}


def run_again(words, dataset, version, **options):
    run_job(words / "manifest.csv", "marking:mark", dataset, version=version, **options)


def test_a_reader_keeps_its_version_during_and_after_a_run(out, words):
    opened = open_dataset(out, columns=["version"])
    during = []

    def read():
        during.append(versions(opened))
        during.append(versions(open_dataset(out, columns=["version"])))

    run_again(words, out, 2, before=read)
    assert during == [{(1, 1)}, {(1, 1)}]
    assert versions(opened) == {(1, 1)}
    assert versions(open_dataset(out, columns=["version"])) == {(2, 2)}


def test_a_copy_on_another_machine_keeps_its_version(out, words):
    """There, the file with the table of the samples does not exist."""
    opened = open_dataset(out, columns=["version"])
    sent = pickle.dumps(opened)
    del opened
    run_again(words, out, 2)
    assert versions(pickle.loads(sent)) == {(1, 1)}


def test_many_runs_remove_a_version_that_is_open_and_the_reader_reports_it(out, words):
    opened = open_dataset(out, columns=["version"])
    for version in (2, 3):
        run_again(words, out, version)
    with pytest.raises(StoreError, match=REMOVED):
        versions(opened)
    with pytest.raises(OptionError, match=REMOVED):
        len(opened.frame)
    assert versions(open_dataset(out, columns=["version"])) == {(3, 3)}
    assert len(list((out / "files").iterdir())) == 8
    assert list(verify(Ledger(LocalStore(out)))) == []


def test_each_sample_of_a_reader_belongs_to_the_version_that_it_opened(out, words):
    for version in range(2, 12):
        opened = open_dataset(out, columns=["version"])
        run_again(words, out, version)
        assert versions(opened) == {(version - 1, version - 1)}


@pytest.mark.parametrize(("kept", "folders"), [(0, 4), (1, 8), (2, 12)])
def test_the_number_of_earlier_versions_to_keep(out, words, kept, folders):
    for version in (2, 3, 4):
        run_again(words, out, version, keep_versions=kept)
    assert len(list((out / "files").iterdir())) == folders
    found = [version.number for version in Ledger(LocalStore(out)).snapshots.versions()]
    assert found == [1, 2, 3, 4][-1 - kept :]


def test_a_version_with_a_name_stays(out, words):
    ledger = Ledger(LocalStore(out))
    ledger.snapshots.keep("paper", 1)
    for version in (2, 3, 4):
        run_again(words, out, version)
    assert versions(open_dataset(out, version="paper", columns=["version"])) == {(1, 1)}
    assert versions(open_dataset(out, version=3, columns=["version"])) == {(3, 3)}
    with pytest.raises(OptionError, match=r"Versions: 1, 3, 4\. Names: paper\."):
        open_dataset(out, version=2)
    ledger.snapshots.drop("paper")
    run_again(words, out, 5)
    assert [version.number for version in ledger.snapshots.versions()] == [4, 5]
    assert len(list((out / "files").iterdir())) == 8


def test_an_unchanged_run_and_equal_results_make_no_version(out, words):
    run_again(words, out, 1)
    run_again(words, out, 1, force=True)
    assert [version.number for version in Ledger(LocalStore(out)).snapshots.versions()] == [1]
    assert len(list((out / "files").iterdir())) == 4


def test_versions_stay_when_the_parts_of_the_ledger_are_merged(out, words, monkeypatch):
    run_again(words, out, 2)
    ledger = Ledger(LocalStore(out))
    monkeypatch.setattr(run_module, "with_merged_parts", partial(with_merged_parts, many=1))
    run_again(words, out, 3)
    assert [name[:14] for name in ledger.state().named_parts] == ["merged-000003-"]
    before = named_files(ledger)
    for version in (4, 5, 6):
        run_again(words, out, version, keep_versions=0)
        assert versions(open_dataset(out, columns=["version"])) == {(version, version)}
        assert list(verify(ledger, hash_files=True)) == []
    assert not before & named_files(ledger)
    assert len(ledger.part_names()) <= 3


def test_files_of_a_killed_run_are_replaced_after_the_step_is_changed_back(
    out, words, tmp_path, monkeypatch
):
    job = job_of(words / "manifest.csv", "marking:mark", out, params={"version": 2}, num_workers=1)

    def killed():
        with open_run(prepare(job)) as run:
            _, (shard,) = run.divide(Cores(total=1, node=1))
            monkeypatch.setattr(Ledger, "commit", lambda *_: os._exit(9))
            run_shard(shard)

    assert in_child(killed) == 9
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    run_job(words / "manifest.csv", "marking:mark", out, version=1)
    assert versions(open_dataset(out, columns=["version"])) == {(1, 1)}
    assert list(verify(Ledger(LocalStore(out)), hash_files=True)) == []


def test_after_the_run_the_dataset_can_be_opened_again(out, words):
    job = job_of(words / "manifest.csv", "marking:mark", out, params={"version": 2}, num_workers=1)
    with open_run(prepare(job)) as run:
        _, (shard,) = run.divide(Cores(total=1, node=1))
        run_shard(shard)
        run.finalize()
        assert [found.path for found in verify(Ledger(LocalStore(out)))] == ["metadata.parquet"]
        publish_changes(run.prepared, run.number)
        run.end()
    assert versions(open_dataset(out, columns=["version"])) == {(2, 2)}
    assert list(verify(Ledger(LocalStore(out)))) == []
