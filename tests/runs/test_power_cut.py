"""A power cut loses what was not written to the disk. No record may name such a file."""

import os

import pytest
from harness.copying_job import CopyingJob

from batchmill.core.ledger.committer import Committer
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.storage import LocalStore
from batchmill.core.storage.addresses import parse_address
from batchmill.datasets.maintenance.verify import verify


class Disk:
    """Remembers the outputs that were on the disk at the last `sync`.

    A file that the store writes itself is synced before its name appears, so parts are always on
    the disk.
    """

    def __init__(self, dataset):
        self._dataset = dataset
        self.kept = {}

    def sync(self, names):
        packs = {place.pack for name in names if (place := parse_address(name))}
        for path in self._outputs():
            if path.suffix == ".txt" or str(path.relative_to(self._dataset)) in packs:
                self.kept[path] = path.stat().st_size

    def cut(self):
        """Lose the content of all files that was not synced, as a journaling file system does."""
        for path in self._outputs():
            os.truncate(path, self.kept.get(path, 0))

    def _outputs(self):
        return [*self._dataset.glob("files/*/*.txt"), *self._dataset.glob("packs/*.tar")]


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return CopyingJob(tmp_path, 12)


@pytest.mark.parametrize("options", [{}, {"pack": "1MB"}], ids=["files", "packs"])
@pytest.mark.parametrize("parts", [1, 6])
def test_records_name_only_files_that_survive_a_power_cut(job, monkeypatch, parts, options):
    """The power fails after some parts, before the next one."""
    disk, commit, add = Disk(job.dataset), Ledger.commit, Committer.add

    def commit_some(ledger, part, records):
        if parts == len(ledger.part_names()):
            raise RuntimeError("the power fails")
        commit(ledger, part, records)

    def commit_each(committer, outcomes):
        for outcome in outcomes:
            add(committer, [outcome])
            committer.flush()

    monkeypatch.setattr(LocalStore, "sync", lambda _, names: disk.sync(names))
    monkeypatch.setattr(Ledger, "commit", commit_some)
    monkeypatch.setattr(Committer, "add", commit_each)
    with pytest.raises(RuntimeError, match="the power fails"):
        job.run(batch_size=4, num_workers=1, options=options)
    disk.cut()
    found = list(verify(job.ledger, hash_files=True))
    assert [difference.path for difference in found if difference.input] == []
    monkeypatch.undo()
    monkeypatch.chdir(job.folder)
    recorded = len(job.ledger.records(["input"]))
    assert recorded == parts
    assert job.run(options=options) == 12 - recorded
    assert list(verify(job.ledger, hash_files=True)) == []


def test_outputs_are_written_to_the_disk_once_for_each_part(job, monkeypatch):
    calls, sync = [], LocalStore.sync

    def count(store, names):
        calls.append(store)
        sync(store, names)

    monkeypatch.setattr(LocalStore, "sync", count)
    job.run()
    assert len(calls) == len(job.ledger.part_names())
    job.run()
    assert len(calls) == len(job.ledger.part_names())
