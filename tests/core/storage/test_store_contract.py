"""The contract of all stores, tested with a folder, memory, S3, Google and Azure."""

import os
import signal
import uuid

import pytest
from harness.contention import FORK, at_once

from batchmill import StoreError
from batchmill.core.storage import LocalStore, open_store
from batchmill.core.storage.addresses import Address
from batchmill.core.storage.fingerprints import content_of
from batchmill.core.storage.objects import ObjectStore
from batchmill.core.storage.pack_writer import encode_member


def make_store(kind, request, tmp_path):
    if kind == "local":
        return open_store(str(tmp_path / "store"))
    if kind == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}")
    fixture = {"s3": "bucket", "google": "google_bucket", "azure": "container"}[kind]
    return open_store(f"{request.getfixturevalue(fixture)}/some/where")


S3 = pytest.param("s3", marks=pytest.mark.end_to_end)
GOOGLE = pytest.param("google", marks=pytest.mark.end_to_end)
AZURE = pytest.param("azure", marks=pytest.mark.system)


@pytest.fixture(params=["local", "memory", S3, GOOGLE, AZURE])
def store(request, tmp_path):
    return make_store(request.param, request, tmp_path)


@pytest.fixture(params=["local", S3, GOOGLE, AZURE])
def shared_store(request, tmp_path):
    """A store that several processes share. A memory store exists in one process only."""
    return make_store(request.param, request, tmp_path)


def test_a_url_opens_an_object_store_and_a_path_a_local_store(store):
    assert isinstance(store, LocalStore if "://" not in store.url else ObjectStore)
    assert store.url_of("a/b") == f"{store.url}/a/b"


def test_a_file_is_replaced_only_when_the_new_one_is_complete(store):
    store.write("a/b", b"old")

    def writer(file):
        file.write(b"new")
        assert store.read("a/b") == b"old"
        assert store.names("a") == ["b"]

    store.write_atomic("a/b", writer)
    assert store.read("a/b") == b"new"
    assert store.names("a") == ["b"]
    assert list(store.leftovers()) == []


def test_a_writer_that_fails_changes_nothing(store):
    store.write("a", b"old")

    def stop_half_way(file):
        file.write(b"new")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.write_atomic("a", stop_half_way)
    assert store.names("") == ["a"]
    assert store.read("a") == b"old"


def test_a_file_is_created_once(store):
    assert [store.create("a/b", text) for text in (b"first", b"second")] == [True, False]
    assert store.read("a/b") == b"first"
    assert store.names("a") == ["b"]


def test_only_one_of_several_processes_creates_a_file(shared_store):
    assert at_once(8, lambda number: shared_store.create("a", str(number).encode())) == 1


def test_names_that_do_not_exist(store):
    assert not store.exists("x")
    assert store.names("x") == []
    assert list(store.files("x")) == []
    assert list(store.sizes(["x", "y/z"])) == [None, None]
    store.delete("x")
    store.remove("x")
    for call in (store.read, store.open, store.content_of):
        with pytest.raises(StoreError, match="x: "):
            call("x")


def test_names_and_files_and_sizes(store):
    names = ["a", "f/a", "f/b/c", "f/b/d e#%?*.txt", "g/.hidden", "f/é"]
    for number, name in enumerate(names):
        store.write(name, b"x" * number)
    assert store.names("") == ["a", "f", "g"]
    assert store.names("f") == ["a", "b", "é"]
    assert sorted(store.files("f")) == sorted(name for name in names if name.startswith("f/"))
    assert list(store.sizes([*names, "f/zz"])) == [0, 1, 2, 3, 4, 5, None]
    assert all(store.exists(name) for name in names)


def test_the_sizes_of_many_files(store):
    names = [f"files/{number:04d}/x" for number in range(300)]
    for number, name in enumerate(names):
        store.write(name, b"x" * (number % 7))
    assert list(store.sizes([*names, "files/0000/y"])) == [n % 7 for n in range(300)] + [None]


def test_all_stores_hash_content_alike(store, tmp_path):
    data = os.urandom(3_000_000)
    (tmp_path / "x").write_bytes(data)
    store.write("x", data)
    assert store.content_of("x") == content_of(str(tmp_path / "x"))
    assert store.open("x").read() == data


def test_remove_and_delete_leave_other_files(store):
    for name in ("files/a/1", "files/a/2/3", "files/ab/1", "files/b"):
        store.write(name, b"x")
    store.remove("files/a")
    store.remove("files/b")
    assert list(store.files("files")) == ["files/ab/1"]
    store.delete("files/ab/1")
    assert store.names("files") == []


@pytest.mark.parametrize("damage", [False, True])
def test_put_folder_leaves_the_same_files_and_replaces_damaged_ones(store, damage):
    with store.staging("one") as folder:
        for times in (1, 2):
            staged = folder / "x"
            contents = {}
            for name in ("a", "b/c"):
                (staged / name).parent.mkdir(parents=True, exist_ok=True)
                (staged / name).write_text(f"this is {name}")
                contents[name] = content_of(str(staged / name))
            for upload in store.put_folder(staged, "files/x", contents):
                upload()
            if damage and times == 1:
                store.write("files/x/a", b"THIS IS a")
    assert list(store.files("files")) == ["files/x/a", "files/x/b/c"]
    assert {name: store.content_of(f"files/x/{name}") for name in contents} == contents
    assert not folder.exists()


def test_a_large_file_is_written_completely_or_not_at_all(shared_store):
    """The file is so large that S3's library sends it in parts."""
    block = os.urandom(2**20)

    def write(file, count=120):
        for _ in range(count):
            file.write(block)

    shared_store.write_atomic("large", write)
    assert list(shared_store.sizes(["large"])) == [120 * 2**20]
    before = shared_store.content_of("large")

    def die(file):
        write(file, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=shared_store.write_atomic, args=("large", die))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert shared_store.content_of("large") == before


def test_each_process_has_its_own_connection(shared_store):
    """DataLoader workers are forked from a process that has used the store."""
    shared_store.write("a", b"x")

    def use(number):
        assert shared_store.read("a") == b"x"
        shared_store.write(f"b/{number}", b"y")

    at_once(4, use)
    assert shared_store.names("b") == ["0", "1", "2", "3"]


def test_an_empty_file_of_a_pack_is_read_at_each_place(store):
    data, places = b"", []
    for content in (b"", b"content", b""):
        header, member = encode_member("x", content)
        places.append(Address("packs/a.tar", len(data) + header, len(content)))
        data += member
    store.write("packs/a.tar", data)
    names = [str(place.named("x")) for place in places]
    assert [store.read(name) for name in names] == [b"", b"content", b""]
    assert list(store.sizes(names)) == [0, 7, 0]
