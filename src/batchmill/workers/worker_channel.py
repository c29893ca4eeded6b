"""The channel between a worker and the process that watches it: a slot, a journal and a log.

The slot holds the worker's current input and its start time. The journal holds outcomes. The
watcher can read them even if the worker died right after writing them. The log holds the step's
output. It is in memory, and its size is limited.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import tempfile
import threading
from dataclasses import dataclass

# Imported by name, because a step may replace functions of these modules.
from marshal import dumps, loads
from time import monotonic
from typing import Any

from batchmill.outcome import Outcome, WrittenFile
from batchmill.workers.memory import resident_bytes, used_bytes
from batchmill.workers.ring_buffer import RingBuffer

LOG_TAIL_BYTES = 16 * 1024
_LOG_LIMIT_BYTES = 8 * 2**20
_BLOCK_BYTES = 512  # The unit of `st_blocks`.
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
# Loaded at import time: after a fork, a thread that no longer exists may hold the loader's lock.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
# Index of the current input, start time of its current stage, and 1 while the step is running.
_SLOT = struct.Struct("qdq")
_BASELINE = struct.Struct("q")  # Bytes of memory before the first input.
_LAST = struct.Struct("q")  # Index of the input that was begun last.
_LAST_AT = _SLOT.size + _BASELINE.size
_IDLE = -1


@dataclass(frozen=True)
class Occupied:
    """A worker's current input.

    Attributes:
        index: The index of the input.
        started: When the current stage began, in monotonic seconds. The stages are: fetch and read
            the input, run the step, place its files.
        in_step: True while the step is running.
    """

    index: int
    started: float
    in_step: bool = True


class WorkerChannel:
    """The channel between one worker and its watcher. Create it before the worker is forked."""

    def __init__(self) -> None:
        self._slot = mmap.mmap(-1, _LAST_AT + _LAST.size)
        _SLOT.pack_into(self._slot, 0, _IDLE, 0.0, 0)
        _LAST.pack_into(self._slot, _LAST_AT, _IDLE)
        self._journal = RingBuffer()
        self._sending = threading.Lock()
        self.log = anonymous_file("batchmill-log")

    # The worker's side

    def enter(self) -> None:
        """Record the memory that the worker uses before its first input."""
        _BASELINE.pack_into(self._slot, _SLOT.size, resident_bytes(os.getpid()))

    def begin(self, index: int) -> None:
        """Record that the worker begins an input."""
        _LAST.pack_into(self._slot, _LAST_AT, index)
        _SLOT.pack_into(self._slot, 0, index, monotonic(), 0)

    def resume(self, index: int) -> None:
        """Record that the step continues with an input that the worker began earlier."""
        _SLOT.pack_into(self._slot, 0, index, monotonic(), 1)

    def begin_step(self) -> None:
        """Record that the step begins with the current input."""
        self.resume(_SLOT.unpack_from(self._slot)[0])

    def end_step(self) -> None:
        """Record that the step has returned or raised."""
        _SLOT.pack_into(self._slot, 0, _SLOT.unpack_from(self._slot)[0], monotonic(), 0)

    def leave(self) -> None:
        """Record that the worker is idle."""
        _SLOT.pack_into(self._slot, 0, _IDLE, 0.0, 0)

    def finish(self, index: int, outcome: Outcome) -> None:
        """Write an input's outcome to the journal, and record that the worker is idle."""
        self.send(index, outcome)
        self.leave()

    def show(self, index: int) -> None:
        """Record that the worker waits until the files of an earlier input are stored."""
        _SLOT.pack_into(self._slot, 0, index, monotonic(), 0)

    def send(self, index: int, outcome: Outcome) -> None:
        """Write an input's outcome to the journal. Any thread of the worker may call this."""
        # marshal takes a third of pickle's time. It is enough for the plain values of an outcome.
        fields: tuple[Any, ...] = outcome
        if outcome.outputs:
            fields = outcome._replace(outputs=tuple(map(tuple, outcome.outputs)))  # type: ignore[arg-type]
        record = dumps((index, *fields), 2)
        with self._sending:
            self._journal.write(record)

    # The watcher's side

    def used_bytes(self, pid: int, limit: int) -> int:
        """Return the memory growth of the worker `pid` and its descendants since `enter`, in bytes.

        The number is exact only above `limit`.
        """
        return used_bytes(pid, int(_BASELINE.unpack_from(self._slot, _SLOT.size)[0]), limit)

    @property
    def last(self) -> int:
        """The index of the input that the worker began last; -1 before the first input."""
        return int(_LAST.unpack_from(self._slot, _LAST_AT)[0])

    @property
    def occupied(self) -> Occupied | None:
        """The worker's current input; None if it is idle."""
        index, started, in_step = _SLOT.unpack_from(self._slot)
        return None if index == _IDLE else Occupied(index, started, bool(in_step))

    def receive(self) -> list[tuple[int, Outcome]]:
        """Return the outcomes that have arrived, each with its input's index. Does not wait."""
        return [_unpack(record) for record in self._journal.read()]

    def bound_log(self) -> None:
        """Free the memory of a long log, except that of its tail.

        The size of the log stays the same. So the step may print at the same moment.
        """
        seen = os.fstat(self.log)
        if seen.st_blocks * _BLOCK_BYTES > _LOG_LIMIT_BYTES and _libc:
            length = ctypes.c_long(seen.st_size - LOG_TAIL_BYTES)
            _libc.fallocate(self.log, _PUNCH_HOLE, ctypes.c_long(0), length)

    def close(self) -> None:
        """Release the memory and the file of the watcher's side."""
        os.close(self.log)
        self.close_memory()

    def close_memory(self) -> None:
        """Release the memory of this process's side. The log stays open."""
        self._journal.close()
        self._slot.close()

    # Both sides

    def log_tail(self) -> str:
        """Return the end of the step's output for this input."""
        size = os.fstat(self.log).st_size
        data = os.pread(self.log, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _unpack(record: bytes) -> tuple[int, Outcome]:
    # The data comes from our own worker, through private memory.
    index, *fields = loads(record)  # noqa: S302
    outcome = Outcome._make(fields)
    if outcome.outputs:
        outcome = outcome._replace(outputs=tuple(map(WrittenFile._make, outcome.outputs)))
    return index, outcome


def anonymous_file(name: str) -> int:
    """Open a file without a path, for appending. It is in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    return descriptor
