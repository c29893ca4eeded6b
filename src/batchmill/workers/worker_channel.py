"""The channel between a worker and the process that watches it: slots, a journal and a log.

A slot holds a current input of the worker and its start time. Only a worker of an async step has
several slots. The journal holds outcomes. The
watcher can read them even if the worker died right after writing them. The log holds the step's
output. It is in memory, and its size is limited.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import threading
from dataclasses import dataclass

# Imported by name, because a step may replace functions of these modules.
from marshal import dumps, loads
from time import monotonic
from typing import Any

from batchmill.outcome import Outcome, WrittenFile
from batchmill.workers.memory_usage import resident_bytes, used_bytes
from batchmill.workers.ring_buffer import RingBuffer

LOG_TAIL_BYTES = 16 * 1024
_LOG_LIMIT_BYTES = 8 * 2**20
_BLOCK_BYTES = 512  # The unit of `st_blocks`.
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
# Loaded at import time: after a fork, a thread that no longer exists may hold the loader's lock.
_libc = ctypes.CDLL(None)
# Index of an input, start time of its current stage, and the stage.
_SLOT = struct.Struct("qdq")
_MOVING, _IN_STEP, _PAUSED, _WAITING = range(4)
_BASELINE = struct.Struct("q")  # Bytes of memory before the first input.
_LAST = struct.Struct("q")  # Index of the input that was begun last.
_LAST_AT = _BASELINE.size
_SLOTS_AT = _LAST_AT + _LAST.size
_IDLE = -1


@dataclass(frozen=True)
class Occupied:
    """A current input of a worker.

    Attributes:
        index: The index of the input.
        started: When the current stage began, in monotonic seconds. The stages are: fetch and read
            the input, run the step, place its files.
        in_step: True while the step is running.
        is_paused: True while the input waits for its turn, or for its next attempt.
        has_begun: False until the first attempt begins.
    """

    index: int
    started: float
    in_step: bool = True
    is_paused: bool = False
    has_begun: bool = True


class WorkerChannel:
    """The channel between one worker and its watcher. Create it before the worker is forked.

    Args:
        slots: The number of inputs that the worker executes at a time.
    """

    def __init__(self, slots: int = 1) -> None:
        self._memory = mmap.mmap(-1, _SLOTS_AT + slots * _SLOT.size)
        self._places = range(_SLOTS_AT, _SLOTS_AT + slots * _SLOT.size, _SLOT.size)
        for slot in range(slots):
            self.leave(slot)
        _LAST.pack_into(self._memory, _LAST_AT, _IDLE)
        self._journal = RingBuffer()
        self._sending = threading.Lock()
        self.log = anonymous_file("batchmill-log")

    # The worker's side

    def enter(self) -> None:
        """Record the memory that the worker uses before its first input."""
        _BASELINE.pack_into(self._memory, 0, resident_bytes(os.getpid()))

    def begin(self, index: int, slot: int = 0) -> None:
        """Record that the worker begins an input."""
        # The index of a retry is smaller than that of the input before.
        _LAST.pack_into(self._memory, _LAST_AT, max(index, self.last))
        self.show(index, slot)

    def resume(self, index: int) -> None:
        """Record that the step continues with an input that the worker began earlier."""
        self._write(0, index, _IN_STEP)

    def begin_step(self, slot: int = 0) -> None:
        """Record that the step begins with the input of a slot."""
        self._write(slot, self._read(slot)[0], _IN_STEP)

    def end_step(self, slot: int = 0) -> None:
        """Record that the step has returned or raised."""
        self._write(slot, self._read(slot)[0], _MOVING)

    def pause(self, slot: int, *, has_begun: bool) -> None:
        """Record that the input of a slot waits for its turn, or for its next attempt."""
        self._write(slot, self._read(slot)[0], _PAUSED if has_begun else _WAITING)

    def leave(self, slot: int = 0) -> None:
        """Record that a slot is free."""
        self._write(slot, _IDLE, _MOVING)

    def finish(self, index: int, outcome: Outcome, slot: int = 0) -> None:
        """Write an input's outcome to the journal, and record that its slot is free."""
        self.send(index, outcome)
        self.leave(slot)

    def show(self, index: int, slot: int = 0) -> None:
        """Record that the worker reads or stores the files of an input."""
        self._write(slot, index, _MOVING)

    def _write(self, slot: int, index: int, stage: int) -> None:
        _SLOT.pack_into(self._memory, self._places[slot], index, monotonic(), stage)

    def _read(self, slot: int) -> tuple[int, float, int]:
        index, started, stage = _SLOT.unpack_from(self._memory, self._places[slot])
        return index, started, stage

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
        return used_bytes(pid, int(_BASELINE.unpack_from(self._memory)[0]), limit)

    @property
    def last(self) -> int:
        """The largest index of an input that the worker has begun; -1 before the first input."""
        return int(_LAST.unpack_from(self._memory, _LAST_AT)[0])

    @property
    def occupied(self) -> Occupied | None:
        """The current input with the step that began first; None if the worker is idle."""
        every = self._current()
        return min(
            every,
            key=lambda one: (one.is_paused, not one.has_begun, not one.in_step, one.started),
            default=None,
        )

    @property
    def slots(self) -> int:
        """The number of inputs that the worker executes at a time."""
        return len(self._places)

    @property
    def in_progress(self) -> list[int]:
        """The current inputs of the worker, without those that are paused."""
        return [one.index for one in self._current() if not one.is_paused]

    def _current(self) -> list[Occupied]:
        found = map(self._read, range(len(self._places)))
        return [
            Occupied(index, started, stage == _IN_STEP, stage >= _PAUSED, stage != _WAITING)
            for index, started, stage in found
            if index != _IDLE
        ]

    def receive(self) -> list[tuple[int, Outcome]]:
        """Return the outcomes that have arrived, each with its input's index. Does not wait."""
        return [_unpack(record) for record in self._journal.read()]

    def bound_log(self) -> None:
        """Free the memory of a long log, except that of its tail.

        The size of the log stays the same. So the step may print at the same moment.
        """
        seen = os.fstat(self.log)
        if seen.st_blocks * _BLOCK_BYTES > _LOG_LIMIT_BYTES:
            length = ctypes.c_long(seen.st_size - LOG_TAIL_BYTES)
            _libc.fallocate(self.log, _PUNCH_HOLE, ctypes.c_long(0), length)

    def close(self) -> None:
        """Release the memory and the file of the watcher's side."""
        os.close(self.log)
        self.close_memory()

    def close_memory(self) -> None:
        """Release the memory of this process's side. The log stays open."""
        self._journal.close()
        self._memory.close()

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
    """Open a file in memory, without a path, for appending."""
    descriptor = os.memfd_create(name)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    return descriptor
