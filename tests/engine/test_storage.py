"""A file appears whole, or not at all."""

import os
import stat

import pytest

from batchmill import StoreError
from batchmill.storage import LocalStore


def test_a_file_is_replaced_at_the_end_of_the_block(tmp_path):
    store = LocalStore(tmp_path)
    store.write("a/b", b"old")
    with store.replacing("a/b") as file:
        file.write(b"new")
        assert store.read("a/b") == b"old"
        assert store.names("a") == ["b"]
    assert store.read("a/b") == b"new"
    assert os.listdir(tmp_path / "a") == ["b"]


def test_a_block_that_fails_changes_nothing(tmp_path):
    store = LocalStore(tmp_path)
    store.write("a", b"old")

    def stop_half_way():
        with store.replacing("a") as file:
            file.write(b"new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop_half_way()
    assert os.listdir(tmp_path) == ["a"]
    assert store.read("a") == b"old"


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
