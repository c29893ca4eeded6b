"""What a file is: its size, its time, and the hash of its content."""

import os
import stat
from typing import IO, NamedTuple

import xxhash

_READ_BYTES = 2**20


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
        return Fingerprint(seen.st_size, seen.st_mtime_ns, "")
    try:
        seen = os.fstat(descriptor)
        content = _hash(descriptor) if stat.S_ISREG(seen.st_mode) else ""
        return Fingerprint(seen.st_size, seen.st_mtime_ns, content)
    finally:
        os.close(descriptor)


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
        return _hash(descriptor)
    finally:
        os.close(descriptor)


def _hash(descriptor: int) -> str:
    data = os.read(descriptor, _READ_BYTES)
    if len(data) < _READ_BYTES and not os.read(descriptor, 1):
        return f"xxh128:{xxhash.xxh3_128_hexdigest(data)}"
    os.lseek(descriptor, 0, os.SEEK_SET)
    state = xxhash.xxh3_128()
    while data := os.read(descriptor, _READ_BYTES):
        state.update(data)
    return f"xxh128:{state.hexdigest()}"
