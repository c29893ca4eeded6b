"""Fetch inputs and upload outputs: one request for a small file, through obstore if possible.

A process that must not use obstore uses fsspec, and so do URLs that obstore does not open.
"""

import mimetypes
import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchmill.core.storage import remote
from batchmill.core.storage.fingerprints import Fingerprint, HashingFile, fingerprint, hash_bytes
from batchmill.core.storage.obstore_s3 import forget_settings, key_of, store_for
from batchmill.core.storage.ranges import HEAD_BYTES
from batchmill.core.storage.retries import retry_remote
from batchmill.core.storage.store_errors import converting_errors, has_expired
from batchmill.core.urls import is_web
from batchmill.errors import StoreError

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta
    from obstore.store import S3Store

# The most fetches of one input with fsspec. An input that changes meanwhile is fetched again.
_FETCHES = 3
_CHUNK_BYTES = 2**20
_PART_BYTES, _MAX_PARTS, _CONCURRENT_PARTS = 8 * 2**20, 9_000, 4
# A file of this size is fetched in parts.
_LARGE_BYTES = 4 * _PART_BYTES
_CHANGED = "it changed while it was read. Run the same command again"


def fetch(url: str, path: str) -> Fingerprint | None:
    """Fetch a file to a local path.

    Returns:
        The fingerprint of the fetched content in its store; None if it is unknown, as with fsspec.

    Raises:
        StoreError: The store failed, or there is no such file.
        OSError: The local file cannot be written.
    """
    seen = _get(url, path)
    if seen is None:
        remote.fetch(url, path)
    return seen


def fetch_planned(url: str, path: str, planned: remote.FileStat) -> Fingerprint:
    """Fetch a file as `fetch` does, and always return a fingerprint.

    Its time and ETag are as in `remote.FileStat`. They describe the same content as the rest.
    """
    for _ in range(_FETCHES):
        seen = fetch(url, path)
        if seen:
            return seen
        now = remote.stat_if_allowed(url) if is_web(url) else remote.stat(url)
        if now is None:
            break  # Some web servers return a file, but no size, time or ETag.
        if now.etag == planned.etag and (now.etag or now.mtime_ns == planned.mtime_ns):
            return stored_fingerprint(path, now.mtime_ns, now.etag)
        planned = now  # The file changed after planning, or during the fetch.
    # No time or ETag is known to describe what was fetched. The next plan compares the contents.
    return stored_fingerprint(path, remote.UNKNOWN_TIME, None)


@retry_remote
def fetch_head(url: str, path: str) -> Fingerprint:
    """Fetch the first HEAD_BYTES of a file to a local path.

    Returns:
        The fingerprint of the whole file in its store. If the file is larger than HEAD_BYTES, its
        content is empty, because it is unknown.

    Raises:
        StoreError: The store failed, or there is no such file.
        OSError: The local file cannot be written.
    """
    store = store_for(url)
    if store:
        try:
            data, seen = _get_part(store, url, (0, HEAD_BYTES), None)
        except StoreError as error:
            if " 416 " not in str(error.__cause__):
                raise
            # It has become empty, and stores reject each range of an empty file.
            return fetch_planned(url, path, remote.FileStat(0, 0, None))
    else:
        known = remote.stat(url)
        if known is None:
            with converting_errors(url):
                raise FileNotFoundError("there is no such file")
        seen = Fingerprint(known.size, known.mtime_ns, "", known.etag)
        # Stores reject each range of an empty file.
        data = _read_part(url, (0, HEAD_BYTES), seen) if seen.size else b""
    Path(path).write_bytes(data)
    return seen if len(data) < seen.size else seen._replace(content=hash_bytes(data))


@retry_remote
def read_range(url: str, start: int, stop: int, seen: Fingerprint) -> bytes:
    """Return the bytes of a file from `start` up to `stop`.

    Raises:
        StoreError: The store failed, or the file is no longer the one with the fingerprint `seen`.
    """
    store = store_for(url)
    if store:
        return _get_part(store, url, (start, stop), seen)[0]
    return _read_part(url, (start, stop), seen)


def _get_part(
    store: "S3Store", url: str, part: tuple[int, int], expected: Fingerprint | None
) -> tuple[bytes, Fingerprint]:
    """Return a part of a file and the fingerprint of the file, with one request."""
    import obstore

    options: GetOptions = {"range": part}
    if expected and expected.etag:
        options["if_match"] = f'"{expected.etag}"'
    with _converting(url):
        response = obstore.get(store, key_of(url), options=options)
        data, seen = bytes(response.bytes()), _fingerprint_in(response.meta, "")
        if expected and seen != expected:
            raise ValueError(_CHANGED)
    return data, seen


def _read_part(url: str, part: tuple[int, int], expected: Fingerprint) -> bytes:
    """Return a part of a file with fsspec, which cannot make the request depend on the ETag."""
    data = remote.read_range(url, part[0], part[1] - part[0])
    with converting_errors(url):
        if remote.stat(url) != (expected.size, expected.mtime_ns, expected.etag):
            raise ValueError(_CHANGED)
    return data


def stored_fingerprint(path: str, mtime_ns: int, etag: str | None) -> Fingerprint:
    """Return the fingerprint of a file in its store, given its local copy."""
    # The times of the local copy say nothing about the file.
    return fingerprint(path)._replace(mtime_ns=mtime_ns, etag=etag, ctime_ns=None)


def upload(path: str, url: str) -> None:
    """Upload a local file atomically. A large file is sent in parts. Raises StoreError."""
    if not _put(path, url):
        remote.upload(path, url)


@retry_remote
def _get(url: str, path: str) -> Fingerprint | None:
    """Fetch a file with obstore. Return None if fsspec must be used."""
    store = store_for(url)
    if not store:
        return None
    import obstore

    with _converting(url):
        response = obstore.get(store, key_of(url))
    with open(path, "wb") as raw:
        file = HashingFile(raw)
        for chunk in _checked_chunks(store, url, response):
            file.write(chunk)
    return _fingerprint_in(response.meta, file.content)


def _checked_chunks(store: "S3Store", url: str, response: "GetResult") -> Iterator[Any]:
    """Yield the bytes of a file in their order. Raises StoreError, also if some are missing."""
    arrived, size = 0, response.meta["size"]
    with _converting(url):
        for chunk in _chunks_of(store, url, response):
            arrived += len(chunk)
            yield chunk
        if arrived != size:
            raise OSError(f"{arrived:,} of {size:,} bytes arrived")


def _chunks_of(store: "S3Store", url: str, response: "GetResult") -> Iterator[Any]:
    """Yield the bytes of a file in their order. A large file comes through several requests.

    S3 limits the speed of one request, not that of all requests together.
    """
    size, etag = response.meta["size"], response.meta["e_tag"]
    if size <= _CHUNK_BYTES:
        # Threads compete for the interpreter, so a small file takes as few calls as possible.
        yield response.bytes()
        return
    stream = response.stream(min_chunk_size=_CHUNK_BYTES)
    if size <= _LARGE_BYTES or not etag:
        yield from stream
        return
    import obstore

    def get(start: int) -> Any:
        part = (start, min(start + _PART_BYTES, size))
        try:
            response = obstore.get(store, key_of(url), options={"range": part, "if_match": etag})
            return response.bytes()
        except obstore.exceptions.PreconditionError as error:
            raise OSError("it changed while it was fetched") from error

    with ThreadPoolExecutor(_CONCURRENT_PARTS) as pool:
        waiting = iter(range(_PART_BYTES, size, _PART_BYTES))
        parts = deque(pool.submit(get, start) for start in islice(waiting, _CONCURRENT_PARTS))
        left = _PART_BYTES
        while left:
            chunk = next(stream)[:left]
            left -= len(chunk)
            yield chunk
        del stream  # Ends the first request.
        while parts:
            yield parts.popleft().result()
            parts.extend(pool.submit(get, start) for start in islice(waiting, 1))


def _fingerprint_in(meta: "ObjectMeta", content: str) -> Fingerprint:
    """Return the fingerprint of a file, given its description in a response and its content."""
    etag = (meta["e_tag"] or "").strip('"')
    time_ns = 0 if etag else int(meta["last_modified"].timestamp() * 1_000_000) * 1000
    return Fingerprint(meta["size"], time_ns, content, etag or None)


@retry_remote
def _put(path: str, url: str) -> bool:
    """Upload a file with obstore. Return False if fsspec must be used."""
    store = store_for(url)
    if not store:
        return False
    import obstore

    kind, _ = mimetypes.guess_type(path)
    with _converting(url):
        obstore.put(
            store,
            key_of(url),
            Path(path),
            attributes={"Content-Type": kind} if kind else None,
            chunk_size=max(_PART_BYTES, os.stat(path).st_size // _MAX_PARTS),
            max_concurrency=_CONCURRENT_PARTS,
        )
    return True


@contextmanager
def _converting(url: str) -> Iterator[None]:
    """Convert the errors of obstore in the block to StoreError."""
    from obstore import exceptions

    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    with converting_errors(url):
        try:
            yield
        except FileNotFoundError as error:
            # The text of obstore has the URL of the request and the answer in XML.
            what = "no such bucket" if "NoSuchBucket" in str(error) else "there is no such file"
            raise FileNotFoundError(what) from error
        except exceptions.PreconditionError as error:
            raise ValueError(_CHANGED) from error
        except Exception as error:
            if has_expired(error):
                forget_settings()
            elif isinstance(error, denied):
                # The text of obstore has the answer of the server in XML.
                message = re.search(r"<Message>(.*?)</Message>", str(error), re.DOTALL)
                raise PermissionError(message[1] if message else str(error)) from error
            raise
