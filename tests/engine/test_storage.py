"""A file appears whole, or not at all."""

import errno
import os
import stat

import pytest

from batchmill import StoreError
from batchmill.storage import LocalStore


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path):
    store = LocalStore(tmp_path)
    store.write("a/b", b"old")

    def writer(file):
        file.write(b"new")
        assert store.read("a/b") == b"old"
        assert store.names("a") == ["b"]

    store.fill("a/b", writer)
    assert store.read("a/b") == b"new"
    assert os.listdir(tmp_path / "a") == ["b"]


def test_a_writer_that_fails_changes_nothing(tmp_path):
    store = LocalStore(tmp_path)
    store.write("a", b"old")

    def stop_half_way(file):
        file.write(b"new")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.fill("a", stop_half_way)
    assert os.listdir(tmp_path) == ["a"]
    assert store.read("a") == b"old"


def test_of_several_that_create_a_file_one_succeeds(tmp_path):
    store = LocalStore(tmp_path)
    assert [store.create("a/b", text) for text in (b"first", b"second")] == [True, False]
    assert store.read("a/b") == b"first"
    assert os.listdir(tmp_path / "a") == ["b"]


@pytest.mark.parametrize(("error", "tries"), [(errno.EIO, 3), (errno.EACCES, 1)])
def test_what_may_pass_is_tried_again(tmp_path, monkeypatch, error, tries):
    monkeypatch.setattr("batchmill.storage.store.patient.pauses", (0.0, 0.0))
    count = 0

    def fail(file):
        nonlocal count
        count += 1
        raise OSError(error, "no")

    with pytest.raises(StoreError, match="no"):
        LocalStore(tmp_path).fill("a", fail)
    assert count == tries
    assert os.listdir(tmp_path) == []


def test_what_is_not_there(tmp_path):
    store = LocalStore(tmp_path)
    assert not store.exists("x")
    assert store.names("x") == []
    with pytest.raises(StoreError, match="No such file"):
        store.read("x")


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        LocalStore(tmp_path / "file").write("x", b"")


def test_files_have_the_usual_rights(tmp_path):
    LocalStore(tmp_path).write("a", b"")
    (tmp_path / "usual").write_bytes(b"")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == (
        stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    )
