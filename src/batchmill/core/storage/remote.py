"""Read and write files by URL, through fsspec. Every function raises StoreError if it fails.

Nothing is cached, so changes by other processes are visible at once.
"""

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.storage import provider_requests
from batchmill.core.storage.fingerprints import hash_bytes, hash_file, recordable
from batchmill.core.storage.large_tables import SLICE_ROWS, collected, take
from batchmill.core.storage.ranges import RangeReader
from batchmill.core.storage.retries import retry_remote
from batchmill.core.storage.store import in_threads
from batchmill.core.storage.store_errors import converting_errors
from batchmill.core.storage.url_file_system import connected
from batchmill.core.urls import is_url, is_web, shown_url, url_fault
from batchmill.errors import StoreError

# The number of concurrent requests.
THREADS = 16
# Up to this number of files, request each file. For more files, list their folders: one response
# of a listing has a thousand files.
FEW = 200
_WHOLE_BYTES = 32 * 2**20
_BLOCK_BYTES = 8 * 2**20

UNKNOWN_TIME = -1
UNKNOWN_SIZE = -2


class FileStat(NamedTuple):
    """A file as its store describes it.

    Attributes:
        size: The size in bytes. It is UNKNOWN_SIZE if the store does not give it, as some web
            servers.
        mtime_ns: The time of the last change, in nanoseconds since 1970. It is 0 if there is an
            ETag. It is UNKNOWN_TIME if the store gives neither an ETag nor a time: then only the
            content shows a change.
        etag: The ETag; None if the store gives no ETag.
    """

    size: int
    mtime_ns: int
    etag: str | None


# A file that may exist: its server does not respond, or responds with an error.
UNREACHABLE = FileStat(-1, UNKNOWN_TIME, None)

# The columns of a listing of many files: their relative names, and the fields of FileStat.
FOUND = pa.schema(
    [("name", pa.string()), ("size", pa.int64()), ("mtime_ns", pa.int64()), ("etag", pa.string())]
)


def check_url(url: str) -> None:
    """Raise StoreError if a URL contains a secret, or if no library can open it."""
    fault = url_fault(url)
    if fault:
        raise StoreError(shown_url(url), fault)
    with connected(url):
        pass


def why_unusable(url: str) -> str:
    """Return the reason why URLs of this kind cannot be opened; empty if they can."""
    try:
        with connected(url):
            return ""
    except StoreError as error:
        return error.reason


@retry_remote
def stat(url: str) -> FileStat | None:
    """Return the description of a file; None if it does not exist."""
    with _ignoring_missing(), connected(url) as (files, path):
        found = provider_requests.look_up(files, path)
        return _seen(found) if found.get("type") == "file" else None
    return None


def stat_many(
    urls: Sequence[str], look_up: Callable[[str], FileStat | None] = stat
) -> list[FileStat | None]:
    """Return the descriptions of files. List a folder once if many of them are in it.

    Others are looked up with `look_up`. A web server is never listed: the page of a folder has no
    sizes, and may omit files.
    """
    if len(urls) <= FEW:
        return in_threads(look_up, urls, THREADS)
    folders = Counter(url.rpartition("/")[0] for url in urls if not is_web(url))
    # A listing of `a/` has the files of `a`, and not `a//b`.
    many = [name for name, count in folders.items() if count > FEW // 10 and name[-1:] != "/"]
    listed = dict(zip(many, in_threads(_list_folder, many, THREADS), strict=True))
    alone = [url for url in urls if url.rpartition("/")[0] not in listed]
    looked = dict(zip(alone, in_threads(look_up, alone, THREADS), strict=True))
    return [
        looked[url] if url in looked else listed[url.rpartition("/")[0]].get(url) for url in urls
    ]


def stat_if_allowed(url: str) -> FileStat | None:
    """Return what `stat` returns. If the store denies access to this file only, return None.

    If a web server does not describe its file, return UNREACHABLE.
    """
    try:
        return stat(url)
    except StoreError as error:
        if is_web(url):
            return UNREACHABLE  # Other inputs may be on other web servers.
        if not isinstance(error.__cause__, PermissionError):
            raise
        check_bucket(url)  # Raises if the bucket denies access to all files.
        return None


@retry_remote
def find(url: str) -> dict[str, FileStat]:
    """Return all files below a URL, by relative name, in sorted order."""
    return dict(sorted(_files_in(url, deep=True)))


@retry_remote
def find_table(url: str) -> pa.Table:
    """Return all files below a URL in sorted order, with the columns of FOUND."""
    rest = _files_in(url, deep=True)
    parts = iter(lambda: [(name, *seen) for name, seen in islice(rest, SLICE_ROWS)], [])
    table = collected((pa.table([*zip(*part, strict=True)], schema=FOUND) for part in parts), FOUND)
    names = table["name"]
    if pc.all(pc.less(names[:-1], names[1:])).as_py() or len(names) < 2:
        return table
    return take(table, pc.sort_indices(names))


@retry_remote
def glob(pattern: str) -> dict[str, FileStat]:
    """Return the files that match a pattern, by URL, in sorted order."""
    # A library may have another name for the scheme: for adlfs, az:// is abfs://.
    root = "/".join(pattern.split("/", 3)[:3])
    with connected(pattern) as (files, path), connected(root) as (_, start):
        entries = files.glob(path, detail=True)
        # For some libraries, the path of the root itself is empty or "/".
        start = start.rstrip("/")
        return {
            f"{root}/{name.removeprefix(start).removeprefix('/')}": _seen(details)
            for name, details in sorted(entries.items())
            if details.get("type") == "file"
        }


@retry_remote
def names(url: str) -> list[str]:
    """Return the names in a folder in sorted order; empty if the folder does not exist."""
    found = _listed(url, deep=False)
    # Some stores have an empty object as a marker of the folder itself.
    return sorted({name.rstrip("/") for name, _ in found} - {""})


@retry_remote
def check_bucket(url: str) -> None:
    """Raise StoreError if the bucket of a URL does not exist or rejects the credentials."""
    with connected(url) as (files, path):
        # Web servers and memory have no buckets.
        if path.partition("/")[0] and not is_url(path):
            provider_requests.check_bucket(files, path)


@retry_remote
def read(url: str) -> bytes:
    """Return the content of a file."""
    with connected(url) as (files, path):
        return provider_requests.whole_file(files, path)


@retry_remote
def read_range(url: str, offset: int, size: int) -> bytes:
    """Return a part of a file. It is shorter if the file ends before."""
    if not size:
        return b""  # Stores reject a request for an empty part.
    with connected(url) as (files, path):
        return bytes(files.cat_file(path, start=offset, end=offset + size))


@retry_remote
def open_for_arrow(url: str) -> pa.NativeFile:
    """Open a file for Arrow. A large file is fetched in blocks while it is read."""
    with connected(url) as (files, path):
        data = provider_requests.small_file(files, path)
        if data:
            return pa.BufferReader(data)
        if files.size(path) <= _WHOLE_BYTES:
            return pa.BufferReader(provider_requests.whole_file(files, path))
        file = files.open(path, "rb", block_size=_BLOCK_BYTES)

    @retry_remote
    def read_part(start: int, stop: int) -> bytes:
        # The caller reads after the end of the block that converts errors.
        with converting_errors(url):
            file.seek(start)
            data: bytes = file.read(stop - start)
            return data

    parts = RangeReader(url, file.size, b"", read_part)
    return pa.PythonFile(io.BufferedReader(parts), mode="r")


@retry_remote
def content_of(url: str) -> str:
    """Read a file and hash its content, as `fingerprints.content_of` does."""
    with connected(url) as (files, path):
        data = provider_requests.small_file(files, path)
        if data:
            return hash_bytes(data)
        with files.open(path, "rb", block_size=_BLOCK_BYTES) as file:
            return hash_file(file)


@retry_remote
def write(url: str, data: bytes) -> None:
    """Write a whole file atomically, and replace an earlier one."""
    with connected(url) as (files, path):
        provider_requests.send_at_once(files)
        files.pipe_file(path, data)


@retry_remote
def copy(source: str, target: str) -> None:
    """Copy a file within one store. The store itself copies it."""
    with connected(source) as (files, path), connected(target) as (_, copied):
        files.cp_file(path, copied)


@retry_remote
def create(url: str, data: bytes) -> bool:
    """Write a file that does not exist yet. Return False if it exists."""
    with connected(url) as (files, path):
        provider_requests.send_at_once(files)
        try:
            files.pipe_file(path, data, mode="create")
        except OSError as error:
            if isinstance(error, FileExistsError) or _is_precondition_failed(error):
                return False
            raise
    return True


@retry_remote
def upload(path: str, url: str) -> None:
    """Upload a local file atomically. A large file is sent in parts."""
    with connected(url) as (files, target):
        provider_requests.send_at_once(files)
        files.put_file(path, target)


@retry_remote
def fetch(url: str, path: str) -> None:
    """Fetch a file to a local path."""
    with connected(url) as (files, source):
        provider_requests.fetch(files, source, path)


@retry_remote
def delete(url: str) -> None:
    """Remove a file. Ignore a file that does not exist."""
    with _ignoring_missing(), connected(url) as (files, path):
        files.rm_file(path)


@retry_remote
def abort_uploads(url: str, names: Collection[str]) -> None:
    """Remove the parts of uploads that were begun and not completed.

    Args:
        url: The URL of a folder.
        names: Files and folders in it. All other uploads continue.
    """
    with connected(url) as (files, path):
        provider_requests.abort_uploads(files, path, names)


@contextmanager
def _ignoring_missing() -> Iterator[None]:
    """End the block early if a file or folder in it does not exist."""
    try:
        yield
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise


@retry_remote
def _list_folder(url: str) -> dict[str, FileStat]:
    """Return the files in a folder, by URL."""
    return {f"{url}/{name}": seen for name, seen in _files_in(url, deep=False)}


def _listed(url: str, *, deep: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entries of a folder with their relative names; none if the folder is missing.

    Args:
        url: The URL of the folder.
        deep: List all files below the folder, instead of the files and folders in it.
    """
    with _ignoring_missing(), connected(url) as (files, path):
        start = path.rstrip("/") + "/"
        for details in provider_requests.list_entries(files, path, deep=deep):
            name = details["name"]
            if name.startswith(start):
                yield name.removeprefix(start), details


def _files_in(url: str, *, deep: bool) -> Iterator[tuple[str, FileStat]]:
    """Yield the files of a listing with their relative names."""
    for name, details in _listed(url, deep=deep):
        if details.get("type") == "file" and name and not name.endswith("/"):
            yield name, _seen(details)


def _is_precondition_failed(error: OSError) -> bool:
    """Return whether botocore's error, which s3fs gives as the cause, has the HTTP status 412.

    s3fs raises FileExistsError only if the body of the answer names the condition, as AWS does.
    """
    response = getattr(error.__cause__, "response", {})
    return bool(response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 412)


def _seen(details: dict[str, Any]) -> FileStat:
    etag = str(details.get("ETag") or details.get("etag") or "").strip('"')
    size = details.get("size")
    size = UNKNOWN_SIZE if size is None else int(size)
    return FileStat(size, 0 if etag else _time(details), etag or None)


def _time(details: dict[str, Any]) -> int:
    for name in ("LastModified", "last_modified", "updated", "mtime", "modified", "created"):
        value = details.get(name)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            return recordable(int(value * 1_000_000) * 1000)
    return UNKNOWN_TIME
