"""Nothing outside a dataset is read, written or removed.

A dataset may come from another person. Its links and the names in its ledger must not give a run
access to other files.
"""

import itertools
import os
import re
import shutil
import threading
import uuid
from contextlib import suppress

import pyarrow.parquet as pq
import pytest
from harness.jobs import run_job

from batchmill import BatchmillError, LedgerError, OptionError, StoreError
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.ledger.open import open_ledger
from batchmill.core.ledger.parts import write_hashed
from batchmill.core.storage import LocalStore, open_store
from batchmill.datasets.maintenance.verify import examine

STEP = "batchmill.steps.words:split"
# All methods of a store that take a name.
CALLS = {
    "exists": lambda store, name: store.exists(name),
    "names": lambda store, name: store.names(name),
    "files": lambda store, name: list(store.files(name)),
    "content_of": lambda store, name: store.content_of(name),
    "read": lambda store, name: store.read(name),
    "open": lambda store, name: store.open(name),
    "write": lambda store, name: store.write(name, b"harm"),
    "create": lambda store, name: store.create(name, b"harm"),
    "delete": lambda store, name: store.delete(name),
    "remove": lambda store, name: store.remove(name),
}


@pytest.fixture
def outside(tmp_path):
    """A folder beside the dataset, with a file."""
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    (folder / "x").write_text("precious")
    (folder / "inner" / "x").write_text("precious")
    yield folder
    assert {path.name: path.read_text() for path in folder.rglob("x")} == {"x": "precious"}
    assert sorted(os.listdir(folder)) == ["inner", "x"]


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}/dataset")
    (tmp_path / "dataset").mkdir()
    return LocalStore(tmp_path / "dataset")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["../outside/x", "files/../../outside/x", "files/.."])
def test_a_name_outside_the_store_is_rejected(store, outside, call, name):
    with pytest.raises(StoreError, match="points outside this dataset"):
        CALLS[call](store, name)


@pytest.mark.parametrize("name", ["a//b", "/etc/passwd", "a\0b", "./a", "a/."])
def test_a_name_that_is_not_a_plain_relative_path_is_rejected(tmp_path, name):
    with pytest.raises(StoreError, match="points outside this dataset"):
        LocalStore(tmp_path).read(name)


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_link_in_a_name_is_rejected(tmp_path, outside, call):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "files").symlink_to(outside)
    with pytest.raises(StoreError, match="dataset/files: is a link"):
        CALLS[call](LocalStore(tmp_path / "dataset"), "files/inner/x")


@pytest.mark.parametrize("call", ["read", "open", "content_of"])
def test_a_file_that_is_a_link_is_not_read(tmp_path, outside, call):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "x").symlink_to(outside / "x")
    with pytest.raises(StoreError, match="dataset/x: is a link"):
        CALLS[call](LocalStore(tmp_path / "dataset"), "x")


def test_write_and_remove_change_a_link_not_its_target(tmp_path, outside):
    store = LocalStore(tmp_path / "dataset")
    store.write("files/a/x", b"old")
    for name in ("x", "y"):
        (tmp_path / "dataset" / name).symlink_to(outside / "x")
    (tmp_path / "dataset" / "files" / "a" / "inner").symlink_to(outside)
    store.write("x", b"new")
    store.delete("y")
    assert store.links("files/a") == ["inner"]
    assert sorted(store.files("files")) == ["files/a/inner", "files/a/x"]
    store.remove("files/a")
    assert store.read("x") == b"new"
    assert store.names("") == ["files", "x"]


def test_put_folder_does_not_follow_a_link(tmp_path, outside):
    store = LocalStore(tmp_path / "dataset")
    with store.staging("one") as folder:
        (folder / "a").mkdir()
        (folder / "a" / "x").write_text("harm")
        (tmp_path / "dataset" / "files").rmdir()
        (tmp_path / "dataset" / "files").symlink_to(outside)
        with pytest.raises(StoreError, match="is a link"):
            store.put_folder(folder / "a", "files/inner", {"x": ""})


def test_a_folder_that_becomes_a_link_during_a_call_is_not_followed(tmp_path, outside):
    """Another thread replaces a folder with a link while a store uses the folder."""
    store = LocalStore(tmp_path / "dataset")
    folder = tmp_path / "dataset" / "files"
    store.write("files/inner/x", b"")
    begun, ended = threading.Event(), threading.Event()

    def exchange():
        for number in itertools.count():
            if ended.is_set():
                return
            with suppress(OSError):
                folder.rename(tmp_path / f"aside-{number}")
                folder.symlink_to(outside)
                folder.unlink()
                begun.set()

    other = threading.Thread(target=exchange)
    other.start()
    try:
        begun.wait()
        for number in range(300):
            with suppress(StoreError):
                store.write(f"files/inner/{number}", b"harm")
                store.remove("files/inner")
    finally:
        ended.set()
        other.join()


# A whole dataset


@pytest.fixture
def dataset(words, tmp_path):
    run_job(words / "manifest.csv", STEP, tmp_path / "dataset")
    return tmp_path / "dataset"


def run(words, dataset, **options):
    return run_job(words / "manifest.csv", STEP, dataset, **options)


@pytest.mark.parametrize("name", ["files", "metadata.csv", ".batchmill/parts", ".batchmill"])
def test_the_error_names_a_link_in_a_dataset(words, dataset, outside, name):
    moved = dataset.parent / "moved"
    (dataset / name).rename(moved)
    (dataset / name).symlink_to(moved)
    for call in (lambda: open_ledger(str(dataset)), lambda: run(words, dataset, force=True)):
        with pytest.raises(BatchmillError, match=rf"{name}: is a link"):
            call()


def rewrite(dataset, **values):
    """Add a part of a later run with another first record. Return its name."""
    (part,) = (dataset / ".batchmill" / "parts").iterdir()
    table = pq.read_table(part).sort_by("input")
    rows = table.to_pylist()
    rows[0] |= values
    changed = table.from_pylist(rows, table.schema)
    name = write_hashed(LocalStore(dataset), ".batchmill/parts/000002-a-00000", changed)
    return name.rpartition("/")[2]


@pytest.mark.parametrize(
    "path",
    [
        "../outside/x",
        "files/../../outside/x",
        "/outside/x",
        ".batchmill/format.json",
        "files/a/./x",
    ],
)
def test_a_part_with_outputs_outside_the_dataset_is_rejected(words, dataset, outside, path):
    part = rewrite(dataset, outputs=[{"path": path, "size": 8, "content": ""}])
    message = f"{part}: names '{re.escape(path)}', which is outside"
    for options in ({"force": True}, {"prune": True}):
        with pytest.raises(LedgerError, match=message):
            run(words, dataset, **options)
    with pytest.raises(LedgerError, match=message):
        examine(Ledger(LocalStore(dataset)), repair=True)
    assert (dataset / ".batchmill" / "format.json").exists()


def test_cleanup_after_a_killed_run_does_not_follow_a_link(words, dataset, outside):
    """The next run removes files without a record, but the folder of the outputs is a link."""
    shutil.rmtree(dataset / "files")
    (dataset / "files").symlink_to(outside)
    with pytest.raises(OptionError, match="files: is a link"):
        run(words, dataset)
