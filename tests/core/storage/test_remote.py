"""A small object is one request, also if it is missing."""

from typing import ClassVar

import fsspec
import pytest
from botocore.exceptions import ReadTimeoutError
from fsspec.implementations.memory import MemoryFileSystem
from s3fs import S3File

from batchmill import StoreError
from batchmill.core.storage import open_store, read_once, remote, retries
from batchmill.core.storage.fingerprints import hash_bytes
from batchmill.core.storage.store import if_exists

SMALL = 2**20


@pytest.fixture
def methods(bucket, proxied):
    """Return a function that calls another one; it returns the result and the methods used."""

    def ask(function, *arguments):
        with proxied() as proxy:
            result = function(*arguments)
            return result, [request.method for request in proxy.requests]

    return ask


@pytest.mark.parametrize("size", [1, SMALL - 1])
def test_a_small_file_is_opened_and_hashed_with_one_request(bucket, methods, size):
    content = b"x" * size
    remote.write(f"{bucket}/a.bin", content)
    file, used = methods(remote.open_for_arrow, f"{bucket}/a.bin")
    assert (file.read(), used) == (content, ["GET"])
    assert methods(remote.content_of, f"{bucket}/a.bin") == (hash_bytes(content), ["GET"])


@pytest.mark.parametrize("size", [0, SMALL, SMALL + 1])
def test_an_empty_or_larger_file_is_opened_and_hashed(bucket, size):
    remote.write(f"{bucket}/a.bin", b"x" * size)
    assert remote.open_for_arrow(f"{bucket}/a.bin").read() == b"x" * size
    assert remote.content_of(f"{bucket}/a.bin") == hash_bytes(b"x" * size)


def test_a_missing_file_is_one_request(bucket, methods):
    remote.write(f"{bucket}/folder/a.bin", b"content")
    assert methods(remote.stat, f"{bucket}/none") == (None, ["HEAD"])
    assert methods(remote.stat, f"{bucket}/folder") == (None, ["HEAD"])
    assert methods(if_exists, open_store(bucket).read, "none") == (None, ["GET"])
    found = methods(if_exists, open_store(bucket).read, "folder/a.bin")
    assert found == (b"content", ["GET"])


@pytest.mark.parametrize(("size", "waits"), [(SMALL - 1, 0), (SMALL, 1)])
def test_only_a_large_upload_waits_until_the_server_accepts_it(
    bucket, proxied, tmp_path, size, waits
):
    """The wait takes a round trip, and saves the upload of what the server rejects."""
    (tmp_path / "file").write_bytes(b"x" * size)
    for send in (
        lambda: remote.write(f"{bucket}/a.bin", b"x" * size),
        lambda: remote.create(f"{bucket}/b.bin", b"x" * size),
        lambda: remote.upload(str(tmp_path / "file"), f"{bucket}/c.bin"),
    ):
        with proxied() as proxy:
            send()
            assert (len(proxy.requests), proxy.waits) == (1, waits)


def test_a_folder_is_listed_again_after_a_change_of_the_store(bucket, methods):
    store = open_store(bucket)
    store.write("a/x", b"")
    with store.keeping_listings():
        assert methods(lambda: [store.names("a"), store.names("a")]) == ([["x"], ["x"]], ["GET"])
        store.write("a/b/y", b"")
        assert (store.names("a"), store.names("")) == (["b", "x"], ["a"])
        store.delete("a/x")
        store.copy("a/b/y", "c")
        assert (store.names("a"), store.names("")) == (["b"], ["a", "c"])
        store.remove("a")
        assert store.names("") == ["c"]
    open_store(bucket).write("d", b"")
    assert store.names("") == ["c", "d"]


def test_a_listing_that_a_change_has_overtaken_is_not_kept(bucket, monkeypatch):
    store, names = open_store(bucket), remote.names

    def list_then_change(url):
        found = names(url)
        monkeypatch.setattr(remote, "names", names)
        store.write("x", b"")
        return found

    monkeypatch.setattr(remote, "names", list_then_change)
    with store.keeping_listings():
        store.names("")
        assert store.names("") == ["x"]


def test_a_file_that_never_changes_is_fetched_once(bucket, methods):
    remote.write(f"{bucket}/part", b"content")
    store = read_once(open_store(bucket))
    assert methods(lambda: store.write("own", b"own") or store.read("own")) == (b"own", ["PUT"])
    assert methods(lambda: [store.open("part").read(), store.read("part")]) == (
        [b"content", b"content"],
        ["GET"],
    )


def test_a_file_without_room_in_memory_is_fetched_again(bucket, methods, monkeypatch):
    monkeypatch.setattr("batchmill.core.storage.objects._KEPT_BYTES", 3)
    remote.write(f"{bucket}/part", b"content")
    store = read_once(open_store(bucket))
    assert methods(lambda: [store.read("part"), store.read("part")])[1] == ["GET", "GET"]


def test_a_listing_of_an_empty_folder_is_one_request(bucket, methods):
    assert methods(remote.find, f"{bucket}/none") == ({}, ["GET"])


class Hosted(MemoryFileSystem):
    """Files on a host, as with FTP: their paths begin with a slash and omit the host."""

    protocol = "hosted"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("hosted://host").strip("/")


def test_a_pattern_on_a_host_returns_urls_with_the_host():
    fsspec.register_implementation("hosted", Hosted, clobber=True)
    remote.write("hosted://host/in/a.txt", b"a")
    assert list(remote.glob("hosted://host/in/*.txt")) == ["hosted://host/in/a.txt"]


def test_an_old_version_of_a_file_is_looked_up(bucket, monkeypatch):
    files = fsspec.filesystem("s3")
    name = bucket.removeprefix("s3://")
    enabled = {"Status": "Enabled"}
    files.call_s3("put_bucket_versioning", Bucket=name, VersioningConfiguration=enabled)
    old = files.call_s3("put_object", Bucket=name, Key="a.txt", Body=b"old")["VersionId"]
    remote.write(f"{bucket}/a.txt", b"newer")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"version_aware": True})
    assert remote.stat(f"{bucket}/a.txt?versionId={old}").size == 3
    assert remote.stat(f"{bucket}/a.txt").size == 5


@pytest.mark.parametrize("faults", [1, 100])
def test_a_large_file_is_read_again_after_a_fault_in_the_middle(bucket, monkeypatch, faults):
    remote.write(f"{bucket}/a.bin", b"x" * (3 * SMALL))
    monkeypatch.setattr(remote, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(retries.time, "sleep", lambda seconds: None)
    left, fetch = [None] * faults, S3File._fetch_range

    def cut(self, start, end):
        if left:
            left.pop()
            raise ReadTimeoutError(endpoint_url=bucket)
        return fetch(self, start, end)

    monkeypatch.setattr(S3File, "_fetch_range", cut)
    file = remote.open_for_arrow(f"{bucket}/a.bin")
    if faults == 1:
        assert file.read() == b"x" * (3 * SMALL)
    else:
        with pytest.raises(StoreError, match=r"a\.bin"):
            file.read()
