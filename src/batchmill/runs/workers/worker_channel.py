"""The channel between a worker and the process that watches it: slots, a journal and a log.

A slot holds a current input of the worker and its start time. Only a worker of an async step has
several slots. The journal holds outcomes. The watcher can read them even if the worker died right
after writing them. The log holds the step's output. It is in memory, and its size is limited.
"""

import ctypes
import fcntl
import mmap
import os
import struct
import threading

# Imported by name, because a step may replace functions of these modules.
from marshal import dumps, loads
from time import monotonic
from typing import Any, NamedTuple

from batchmill.core.outcome import Outcome, WrittenFile
from batchmill.core.user_step.libraries import imported_files
from batchmill.runs.workers.memory_usage import resident_bytes, used_bytes
from batchmill.runs.workers.ring_buffer import RingBuffer

LOG_TAIL_BYTES = 16 * 1024
_LOG_LIMIT_BYTES = 8 * 2**20
_BLOCK_BYTES = 512  # The unit of `st_blocks`.
_PUNCH_HOLE = 3  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
# Loaded at import time: after a fork, a thread that no longer exists may hold the loader's lock.
_libc = ctypes.CDLL(None)
# Index of an input, start time of its current stage, and the stage.
_SLOT, _STAGE = struct.Struct("qdq"), struct.Struct("dq")
_READING, _IN_STEP, _PLACING = range(3)
_INTEGER, _TIME = struct.Struct("q"), struct.Struct("d")
# The places of the numbers before the slots.
_BASELINE, _BLOCKER, _BEAT, _SETUP, _SLOTS = range(0, 40, 8)
_NONE = -1


class Slot(NamedTuple):
    """A current input of a worker.

    Attributes:
        input: The index of the input.
        started: When the current stage began, in monotonic seconds. The stages are: fetch and read
            the input, run the step, place its files.
        stage: The number of the stage.
    """

    input: int
    started: float
    stage: int = _IN_STEP

    @property
    def in_step(self) -> bool:
        """True while the step is running."""
        return self.stage == _IN_STEP

    @property
    def has_begun(self) -> bool:
        """True if the step has begun. Only then can the input have ended its worker."""
        return self.stage != _READING


class WorkerChannel:
    """The channel between one worker and its watcher. Create it before the worker is forked.

    Args:
        slots: The number of inputs that the worker executes at a time.
    """

    def __init__(self, slots: int = 1) -> None:
        self._memory = mmap.mmap(-1, _SLOTS + slots * _SLOT.size)
        self._places = range(_SLOTS, _SLOTS + slots * _SLOT.size, _SLOT.size)
        for slot in range(slots):
            self.leave(slot)
        self._set(_BLOCKER, _NONE)
        self._journal = RingBuffer()
        self._sending = threading.Lock()
        self.log = anonymous_file("batchmill-log")

    # The worker's side

    def enter(self) -> None:
        """Record the memory that the worker uses before its first input."""
        self._set(_BASELINE, resident_bytes(os.getpid()))

    def resume(self, index: int) -> None:
        """Record that the step continues with an input that the worker began earlier."""
        self._write(0, index, _IN_STEP)

    def begin_step(self, slot: int = 0) -> None:
        """Record that the step begins with the input of a slot."""
        _STAGE.pack_into(self._memory, self._places[slot] + _INTEGER.size, monotonic(), _IN_STEP)

    def end_step(self, slot: int = 0) -> None:
        """Record that the step has returned or raised."""
        _STAGE.pack_into(self._memory, self._places[slot] + _INTEGER.size, monotonic(), _PLACING)

    def leave(self, slot: int = 0) -> None:
        """Record that a slot is free."""
        self._write(slot, _NONE, _READING)

    def finish(self, index: int, outcome: Outcome, slot: int = 0) -> None:
        """Write an input's outcome to the journal, and record that its slot is free."""
        self.send(index, outcome)
        self.leave(slot)

    def show(self, index: int, slot: int = 0) -> None:
        """Record that the worker reads or uploads the files of an input."""
        self._write(slot, index, _READING)

    def beat(self) -> None:
        """Record that the event loop of the worker is not blocked now."""
        _TIME.pack_into(self._memory, _BEAT, monotonic())

    def begin_setup(self) -> None:
        """Record that the worker begins to open or to close the step."""
        _TIME.pack_into(self._memory, _SETUP, monotonic())

    def end_setup(self) -> None:
        """Record that the step is open or closed."""
        _TIME.pack_into(self._memory, _SETUP, 0.0)

    def name_blocker(self, slot: int) -> None:
        """Record which slot runs code now. The watcher has requested it."""
        self._set(_BLOCKER, slot)

    def _write(self, slot: int, index: int, stage: int) -> None:
        _SLOT.pack_into(self._memory, self._places[slot], index, monotonic(), stage)

    def _read(self, slot: int) -> Slot:
        return Slot._make(_SLOT.unpack_from(self._memory, self._places[slot]))

    def _set(self, place: int, value: int) -> None:
        _INTEGER.pack_into(self._memory, place, value)

    def _get(self, place: int) -> int:
        return int(_INTEGER.unpack_from(self._memory, place)[0])

    def send(self, index: int, outcome: Outcome) -> None:
        """Write an input's outcome to the journal. Any thread of the worker may call this."""
        imported = imported_files.new()
        if imported:
            outcome = outcome._replace(imported=imported)
        # marshal takes a third of pickle's time. It is enough for the plain values of an outcome.
        fields: tuple[Any, ...] = outcome
        if outcome.outputs:
            fields = outcome._replace(outputs=tuple(map(tuple, outcome.outputs)))  # type: ignore[arg-type]
        self._record((index, *fields))

    def warn(self, text: str) -> None:
        """Write a warning about the worker to the journal, which belongs to no input."""
        self._record((_NONE, text))

    def _record(self, fields: tuple[Any, ...]) -> None:
        record = dumps(fields, 2)
        with self._sending:
            self._journal.write(record)

    # The watcher's side

    def used_bytes(self, pid: int, limit: int) -> int:
        """Return the memory growth of the worker `pid` and its descendants since `enter`, in bytes.

        The number is exact only above `limit`. It is 0 before `enter`.
        """
        before = self._get(_BASELINE)
        return used_bytes(pid, before, limit) if before else 0

    @property
    def blocker(self) -> int | None:
        """The input that `name_blocker` has recorded; None if it is unknown, or has just ended."""
        slot = self._get(_BLOCKER)
        index = _NONE if slot == _NONE else self._read(slot).input
        return None if index == _NONE else index

    @property
    def blocked_since(self) -> float:
        """When the event loop of the worker last ran; 0 without an event loop."""
        return float(_TIME.unpack_from(self._memory, _BEAT)[0])

    @property
    def setup_since(self) -> float:
        """When the worker began to open or to close the step; 0 if it does neither."""
        return float(_TIME.unpack_from(self._memory, _SETUP)[0])

    @property
    def slots(self) -> int:
        """The number of inputs that the worker executes at a time."""
        return len(self._places)

    @property
    def in_use(self) -> list[Slot]:
        """The current inputs of the worker."""
        slots = map(self._read, range(len(self._places)))
        return [slot for slot in slots if slot.input != _NONE]

    def receive(self) -> tuple[list[tuple[int, Outcome]], list[str]]:
        """Return what has arrived: outcomes with their input's index, and warnings."""
        # The data comes from our own worker, through private memory.
        records = [loads(record) for record in self._journal.read()]  # noqa: S302
        outcomes = [_unpack(record) for record in records if record[0] != _NONE]
        return outcomes, [record[1] for record in records if record[0] == _NONE]

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


def _unpack(record: tuple[Any, ...]) -> tuple[int, Outcome]:
    index, *fields = record
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
