"""What one worker shares with the process that watches it: a slot, a pipe and a log.

The slot says which input the worker is at, and since when. Through the pipe, an outcome is the
watcher's as soon as it is written, even if the worker dies in the next instant. The log has what
the step prints; it lives in memory and is bounded.
"""

import fcntl
import mmap
import os
import pickle
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from batchmill.outcome import Outcome

LOG_TAIL_BYTES = 16 * 1024
_LOG_LIMIT_BYTES = 8 * 2**20
_PIPE_BYTES = 2**20
_READ_BYTES = 2**18
_SLOT = struct.Struct("qqd")  # pid, index, started
_LENGTH = struct.Struct("I")
_IDLE = -1


@dataclass(frozen=True)
class Occupied:
    """A worker at work: the index of its input, and since when (seconds, monotonic)."""

    index: int
    started: float


class Station:
    """Made before the worker is forked, so that both have it; `close` ends the watcher's part."""

    def __init__(self) -> None:
        self._slot = mmap.mmap(-1, _SLOT.size)
        self._write_slot(0, _IDLE, 0.0)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        _widen(self._reader)
        self.log = _anonymous_file()
        self._received = bytearray()

    # The worker's side

    def enter(self) -> None:
        """Say that this process is the worker."""
        self._pid = os.getpid()
        self._write_slot(self._pid, _IDLE, 0.0)
        os.close(self._reader)

    def begin(self, index: int) -> None:
        """Say that the worker is at an input now."""
        self._write_slot(self._pid, index, time.monotonic())

    def finish(self, index: int, outcome: Outcome) -> None:
        """Hand over an input's outcome; then the worker is idle."""
        data = pickle.dumps((index, outcome), protocol=pickle.HIGHEST_PROTOCOL)
        _write_all(self._writer, _LENGTH.pack(len(data)) + data)
        self._write_slot(self._pid, _IDLE, 0.0)

    # The watcher's side

    @property
    def pid(self) -> int:
        """The worker's pid; 0 until it has begun."""
        return int(_SLOT.unpack_from(self._slot)[0])

    @property
    def occupied(self) -> Occupied | None:
        """What the worker is at; None if it is idle."""
        _, index, started = _SLOT.unpack_from(self._slot)
        return None if index == _IDLE else Occupied(index, started)

    @property
    def reader(self) -> int:
        """The file descriptor on which outcomes arrive."""
        return self._reader

    def receive(self) -> Iterator[tuple[int, Outcome]]:
        """Yield what has arrived: pairs of an input's index and its outcome. Does not wait."""
        while True:
            try:
                data = os.read(self._reader, _READ_BYTES)
            except BlockingIOError:
                break
            self._received += data
            if len(data) < _READ_BYTES:
                break
        start = 0
        while len(self._received) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, start)
            end = start + _LENGTH.size + length
            if len(self._received) < end:
                break
            # From a process of our own, through a pipe that nobody else can open.
            yield pickle.loads(memoryview(self._received)[start + _LENGTH.size : end])  # noqa: S301
            start = end
        del self._received[:start]

    def bound_log(self) -> None:
        """Keep what a step prints from filling the memory; the worker need not wait for it."""
        if os.fstat(self.log).st_size > _LOG_LIMIT_BYTES:
            os.ftruncate(self.log, 0)

    def close(self) -> None:
        """Give back what the watcher's side holds."""
        for descriptor in (self._reader, self._writer, self.log):
            os.close(descriptor)
        self._slot.close()

    # Both sides

    def log_tail(self) -> str:
        """Return the end of what the step has printed on this input."""
        size = os.fstat(self.log).st_size
        data = os.pread(self.log, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return data.decode("utf-8", "replace").replace("\0", "\ufffd")

    def _write_slot(self, pid: int, index: int, started: float) -> None:
        _SLOT.pack_into(self._slot, 0, pid, index, started)


def _widen(pipe: int) -> None:
    """Let a worker run ahead of its watcher by more outcomes than the usual 64 KiB."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        # The user may have many pipes already; then the usual size will do.
        with suppress(PermissionError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _anonymous_file() -> int:
    """Open a file without a name, in memory where the system has such; it is appended to."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("batchmill-log")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
