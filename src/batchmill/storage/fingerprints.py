"""What a file is: its size, its time, and the hash of its content."""

import os
import stat
from typing import IO, NamedTuple

import xxhash

_READ_BYTES = 2**20
# Plans and records have times as 64-bit integers: from 1677 to 2262. File systems know others.
_EARLIEST, _LATEST = -(2**63), 2**63 - 1


class Fingerprint(NamedTuple):
    """A file as it was at one moment: bytes, nanoseconds since 1970, and what `content_of` gives.

    `content` is empty for what is no regular file, or cannot be read. `etag` is a store's own mark
    of a file, None where there is none.
    """

    size: int
    mtime_ns: int
    content: str
    etag: str | None = None


def fingerprint(path: str) -> Fingerprint:
    """Look at a file and read it. Raises FileNotFoundError if there is none."""
    try:
        # Of a pipe, reading would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        seen = os.stat(path)
        return Fingerprint(seen.st_size, recordable(seen.st_mtime_ns), "")
    try:
        seen = os.fstat(descriptor)
        content = _hash(descriptor, seen.st_size) if stat.S_ISREG(seen.st_mode) else ""
        return Fingerprint(seen.st_size, recordable(seen.st_mtime_ns), content)
    finally:
        os.close(descriptor)


def recordable(time_ns: int) -> int:
    """Return the nearest time, in nanoseconds since 1970, that can be recorded.

    >>> recordable(5), recordable(2**64), recordable(-(2**64)) == -(2**63)
    (5, 9223372036854775807, True)
    """
    if _EARLIEST <= time_ns <= _LATEST:
        return time_ns
    return _EARLIEST if time_ns < 0 else _LATEST


def hash_file(file: IO[bytes]) -> str:
    """Hash what is left to read of an open file, as `content_of` does."""
    state = xxhash.xxh3_128()
    while data := file.read(_READ_BYTES):
        state.update(data)
    return f"xxh128:{state.hexdigest()}"


def content_of(path: str) -> str:
    """Hash a file's content: "xxh128:" and 32 hex digits (XXH3, 128 bits). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _hash(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _hash(descriptor: int, size: int) -> str:
    """Hash an open file, most likely of this `size`; how much there is, reading tells."""
    # For a buffer of a megabyte, a small file takes four times as long.
    data = os.read(descriptor, min(size + 1, _READ_BYTES))
    if len(data) == size and size < _READ_BYTES:
        return f"xxh128:{xxhash.xxh3_128_hexdigest(data)}"
    state = xxhash.xxh3_128(data)
    while data := os.read(descriptor, _READ_BYTES):
        state.update(data)
    return f"xxh128:{state.hexdigest()}"
