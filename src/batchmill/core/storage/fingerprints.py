"""The fingerprint of a file: its size, its times, and the hash of its content."""

import hashlib
import io
import json
import os
import stat
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import xxhash

_READ_BYTES = 2**20
# Plans and records store times as 64-bit integers: the years 1677 to 2262. Some file systems allow
# other times.
_EARLIEST, _LATEST = -(2**63), 2**63 - 1


class Fingerprint(NamedTuple):
    """The state of a file at one moment.

    Attributes:
        size: The size in bytes.
        mtime_ns: The time of the last change, in nanoseconds since 1970.
        content: The hash from `content_of`; empty if the file is unreadable or not a regular file.
        etag: The ETag of the file in its store; None if the store gives no ETag.
        ctime_ns: The time of the last change of the content, the name or the rights, in nanoseconds
            since 1970. A program cannot set it. None if the file is not local.
        companions: The digest of an input's companions, or of the files of a folder; None for a
            file without companions. With it, `content` is the hash of the contents of all files.
    """

    size: int
    mtime_ns: int
    content: str
    etag: str | None = None
    ctime_ns: int | None = None
    companions: str | None = None

    def named(self, name: str) -> "SeenFile":
        """Return the file with its name, without its content."""
        return SeenFile(name, self.size, self.mtime_ns, self.etag, self.ctime_ns)


class SeenFile(NamedTuple):
    """The name of a file, and what is known of it without reading it."""

    name: str
    size: int
    mtime_ns: int
    etag: str | None = None
    ctime_ns: int | None = None


def digest_of_files(files: Mapping[str, SeenFile | None]) -> str:
    """Return a digest of some files by column or name. An empty cell has no file."""
    return hash_bytes(json.dumps(sorted(files.items())).encode())


def joint_digest(*digests: str | None) -> str | None:
    """Return one digest for the digests that are not None. None without any."""
    known = [digest for digest in digests if digest]
    return hash_bytes(" ".join(known).encode()) if len(known) > 1 else next(iter(known), None)


def joint_content(content: str, others: Mapping[str, tuple[str, str] | None]) -> str:
    """Return one hash for the content of an input and its companions.

    Args:
        content: The hash of the input's own content.
        others: The name of each further file and the hash of its content, by column or name. An
            empty cell has no file.
    """
    return hash_bytes(json.dumps([content, sorted(others.items())]).encode())


def fingerprint(path: str) -> Fingerprint:
    """Return the fingerprint of a local file.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    try:
        # Without O_NONBLOCK, the call waits if the file is a pipe without a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return file_state(path)
    try:
        seen = os.fstat(descriptor)
        content = _hash(descriptor, seen.st_size) if stat.S_ISREG(seen.st_mode) else ""
        return _fingerprint(seen, content)
    finally:
        os.close(descriptor)


def file_state(path: str) -> Fingerprint:
    """Return what is known of a local file without reading it."""
    return _fingerprint(os.stat(path), "")


def _fingerprint(seen: os.stat_result, content: str) -> Fingerprint:
    times = recordable(seen.st_mtime_ns), recordable(seen.st_ctime_ns)
    return Fingerprint(seen.st_size, times[0], content, ctime_ns=times[1])


def recordable(time_ns: int) -> int:
    """Return the nearest time, in nanoseconds since 1970, that can be recorded.

    >>> recordable(5), recordable(2**64), recordable(-(2**64)) == -(2**63)
    (5, 9223372036854775807, True)
    """
    return max(_EARLIEST, min(time_ns, _LATEST))


def hash_file(file: io.RawIOBase | io.BufferedIOBase) -> str:
    """Hash the rest of an open file, in the format of `content_of`."""
    return f"xxh128:{hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()}"


def hash_bytes(content: bytes) -> str:
    """Hash a content, in the format of `content_of`."""
    return f"xxh128:{xxhash.xxh3_128_hexdigest(content)}"


class HashingFile:
    """A file that hashes what is written to it, and passes it on to another file if there is one.

    Attributes:
        size: The number of bytes written.
    """

    closed = False

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self.size = 0
        self._file = file
        self._state = xxhash.xxh3_128()

    @property
    def content(self) -> str:
        """The hash of the bytes written, as `content_of` returns it."""
        return f"xxh128:{self._state.hexdigest()}"

    def write(self, data: Any) -> int:
        """Write bytes, and return their number."""
        self._state.update(data)
        self.size += len(data)
        return self._file.write(data) if self._file else len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size

    def flush(self) -> None:
        """Do nothing. Arrow requires this method."""


def content_of(path: str) -> str:
    """Return the hash of a file's content: "xxh128:" and 32 hex digits (XXH3, 128 bits).

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        return _hash(file.fileno(), os.fstat(file.fileno()).st_size)


def _hash(descriptor: int, size: int) -> str:
    """Hash an open file. `size` is its expected size in bytes; the file may have changed since."""
    # With a buffer of one megabyte, a small file takes four times as long.
    data = os.read(descriptor, min(size + 1, _READ_BYTES))
    if len(data) == size and size < _READ_BYTES:
        return f"xxh128:{xxhash.xxh3_128_hexdigest(data)}"
    state = xxhash.xxh3_128(data)
    while data := os.read(descriptor, _READ_BYTES):
        state.update(data)
    return f"xxh128:{state.hexdigest()}"
