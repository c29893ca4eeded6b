"""A file in a store that is read in parts, on demand."""

import io
from collections.abc import Callable
from typing import Any

from batchmill.errors import StoreError

# The first request for an object brings this number of bytes: the header of most formats.
HEAD_BYTES = 128 * 2**10
_MAX_AHEAD = 8 * 2**20


class RangeReader(io.RawIOBase):
    """An object that is read in ranges when they are needed.

    A request at another position fetches HEAD_BYTES. A request that continues the one before
    fetches twice as much as that one, up to 8 MiB, so a few requests fetch a whole object.

    Args:
        name: The name of the file.
        size: Its size in bytes.
        head: Its first bytes.
        read: Reads from one position up to another one. Raises StoreError.

    Attributes:
        fault: The last error of `read`. A library may have replaced it by one of its own.
    """

    def __init__(
        self, name: str, size: int, head: bytes, read: Callable[[int, int], bytes]
    ) -> None:
        self.name = name
        self.fault: StoreError | None = None
        self._size = size
        self._head = head
        self._read = read
        self._start, self._block = 0, head
        self._ahead = HEAD_BYTES
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it. Sends no request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self.name}: negative position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, or a part of it, and return the number of bytes; 0 at the end."""
        target = memoryview(buffer).cast("B")
        if self._position >= self._size or not target:
            return 0
        start, block = self._block_for(len(target))
        data = memoryview(block)[self._position - start :][: len(target)]
        target[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        """Return the rest, with at most one request."""
        parts = []
        while self._position < self._size:
            start, block = self._block_for(self._size - self._position)
            parts.append(block[self._position - start :])
            self._position = start + len(block)
        return b"".join(parts)

    def _block_for(self, size: int) -> tuple[int, bytes]:
        """Return the start and the bytes of a block that includes the position."""
        for start, block in ((self._start, self._block), (0, self._head)):
            if start <= self._position < start + len(block):
                return start, block
        follows = self._position == self._start + len(self._block)
        self._ahead = min(2 * self._ahead, _MAX_AHEAD) if follows else HEAD_BYTES
        # Formats with an index at the end are read backwards from there.
        start = min(self._position, max(0, self._size - self._ahead))
        stop = min(self._position + max(size, self._ahead), self._size)
        block = self._request(start, stop)
        # The caller copies all of a large block, so it need not stay in memory.
        is_large = len(block) > _MAX_AHEAD
        self._start, self._block = (stop, b"") if is_large else (start, block)
        return start, block

    def _request(self, start: int, stop: int) -> bytes:
        try:
            data = self._read(start, stop)
            if len(data) != stop - start:
                raise StoreError(self.name, f"{len(data):,} of {stop - start:,} bytes arrived.")
        except StoreError as error:
            self.fault = error
            raise
        return data
