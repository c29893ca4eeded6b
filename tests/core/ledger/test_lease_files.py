"""The latest lease is found while other processes write and delete the files of leases."""

import pytest

from batchmill import LedgerError, StoreError
from batchmill.core.layout import LEASES
from batchmill.core.ledger import lease_files
from batchmill.core.ledger.lease_files import LeaseFiles, this_process
from batchmill.core.storage import LocalStore

FIRST, SECOND, THIRD = (this_process(number) for number in (1, 2, 3))


@pytest.fixture
def files(tmp_path):
    files = LeaseFiles(LocalStore(tmp_path))
    files.create(FIRST)
    return files


@pytest.mark.parametrize("reads", [1, 9, 10])
def test_a_lease_that_others_replace_or_write_is_read_again(files, monkeypatch, reads):
    def read(name):
        """Before the first read, replace the lease. After some reads, the new file is complete."""
        count.append(name)
        if len(count) == 1:
            files.store.write(f"{LEASES}/000002.json", SECOND.as_json()[:20])
            files.delete(FIRST)
        elif len(count) == reads + 2:
            files.write(SECOND)
        return real(name)

    count, real = [], files.store.read
    monkeypatch.setattr(lease_files, "_READ_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(files.store, "read", read)
    if reads < 10:
        assert files.latest() == SECOND
    else:
        with pytest.raises(LedgerError, match=r"000002\.json: is damaged"):
            files.latest()


def test_a_lease_that_cannot_be_read_does_not_count_as_free(files, tmp_path):
    (tmp_path / LEASES / "000002.json").symlink_to("nowhere")
    with pytest.raises(StoreError, match=r"000002\.json"):
        files.latest()


def test_only_earlier_leases_and_their_unfinished_files_are_deleted(files, tmp_path):
    for holder in (SECOND, THIRD):
        files.create(holder)
    parts = [f".{number:06d}.json.part-{'0' * 32}" for number in (1, 2, 3)]
    unfinished = [f"{LEASES}/{name}" for name in parts]
    others = [f"{LEASES}/.DS_Store", ".batchmill/" + parts[0]]
    for name in (*unfinished, *others):
        (tmp_path / name).write_bytes(b"")
    stay = [unfinished[2], *others, f"{LEASES}/000002.json", f"{LEASES}/000003.json"]
    files.delete_earlier(SECOND)
    found = [path for path in (tmp_path / ".batchmill").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path)) for path in found) == sorted(stay)
    assert files.latest() == THIRD
