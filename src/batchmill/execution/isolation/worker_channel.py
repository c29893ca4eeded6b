"""What one worker shares with the process that watches it: a slot, a journal and a log.

The slot says which input the worker is at, and since when. What stands in the journal is the
watcher's, even if the worker dies in the next instant. The log has what the step prints; it lives
in memory and is bounded.
"""

import fcntl
import mmap
import os
import struct
import tempfile
from dataclasses import dataclass

# By name, here and below: a step may put functions of its own into these modules.
from marshal import dumps, loads
from time import monotonic
from typing import Any

from batchmill.execution.isolation.memory import resident_bytes, used_bytes
from batchmill.execution.isolation.ring_buffer import RingBuffer
from batchmill.outcome import Outcome, WrittenFile

LOG_TAIL_BYTES = 16 * 1024
_LOG_LIMIT_BYTES = 8 * 2**20
_SLOT = struct.Struct("qd")  # index, started
_BASELINE = struct.Struct("q")  # bytes of memory
_LAST = struct.Struct("q")  # the index that was begun last
_LAST_AT = _SLOT.size + _BASELINE.size
_IDLE = -1


@dataclass(frozen=True)
class Occupied:
    """A worker at work: the index of its input, and since when (seconds, monotonic)."""

    index: int
    started: float


class WorkerChannel:
    """Made before the worker is forked, so that both have it; `close` ends the watcher's part."""

    def __init__(self) -> None:
        self._slot = mmap.mmap(-1, _LAST_AT + _LAST.size)
        _SLOT.pack_into(self._slot, 0, _IDLE, 0.0)
        _LAST.pack_into(self._slot, _LAST_AT, _IDLE)
        self._journal = RingBuffer()
        self.log = anonymous_file("batchmill-log")

    # The worker's side

    def enter(self) -> None:
        """Say that this process is the worker, and what it uses before it begins."""
        _BASELINE.pack_into(self._slot, _SLOT.size, resident_bytes(os.getpid()))

    def begin(self, index: int) -> None:
        """Say that the worker is at an input now."""
        _LAST.pack_into(self._slot, _LAST_AT, index)
        self.resume(index)

    def resume(self, index: int) -> None:
        """Say that the worker is once more at an input that it has begun before."""
        _SLOT.pack_into(self._slot, 0, index, monotonic())

    def leave(self) -> None:
        """Say that the worker is idle: it has not touched the input after all."""
        _SLOT.pack_into(self._slot, 0, _IDLE, 0.0)

    def finish(self, index: int, outcome: Outcome) -> None:
        """Hand over an input's outcome; then the worker is idle."""
        # An outcome holds plain values alone, for which marshal takes a third of pickle's time.
        fields: tuple[Any, ...] = outcome
        if outcome.outputs:
            fields = outcome._replace(outputs=tuple(map(tuple, outcome.outputs)))  # type: ignore[arg-type]
        self._journal.write(dumps((index, *fields), 2))
        self.leave()

    # The watcher's side

    def used_bytes(self, pid: int, limit: int) -> int:
        """Return what the worker, `pid`, and its children use of memory beyond its beginning.

        It is exact where it matters: above `limit`.
        """
        return used_bytes(pid, int(_BASELINE.unpack_from(self._slot, _SLOT.size)[0]), limit)

    @property
    def last(self) -> int:
        """The index of the input that the worker began last; -1 before the first."""
        return int(_LAST.unpack_from(self._slot, _LAST_AT)[0])

    @property
    def occupied(self) -> Occupied | None:
        """What the worker is at; None if it is idle."""
        index, started = _SLOT.unpack_from(self._slot)
        return None if index == _IDLE else Occupied(index, started)

    def receive(self) -> list[tuple[int, Outcome]]:
        """Return what has arrived: pairs of an input's index and its outcome. Does not wait."""
        return [_unpack(record) for record in self._journal.read()]

    def bound_log(self) -> None:
        """Keep what a step prints from filling the memory; the worker need not wait for it."""
        if os.fstat(self.log).st_size > _LOG_LIMIT_BYTES:
            os.ftruncate(self.log, 0)

    def close(self) -> None:
        """Give back what the watcher's side holds."""
        os.close(self.log)
        self._journal.close()
        self._slot.close()

    # Both sides

    def log_tail(self) -> str:
        """Return the end of what the step has printed on this input."""
        size = os.fstat(self.log).st_size
        data = os.pread(self.log, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _unpack(record: bytes) -> tuple[int, Outcome]:
    # From a process of our own, through memory that nobody else has.
    index, *fields = loads(record)  # noqa: S302
    outcome = Outcome._make(fields)
    if outcome.outputs:
        outcome = outcome._replace(outputs=tuple(map(WrittenFile._make, outcome.outputs)))
    return index, outcome


def anonymous_file(name: str) -> int:
    """Open a file without a path, in memory where the system has such; it is appended to."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    return descriptor
