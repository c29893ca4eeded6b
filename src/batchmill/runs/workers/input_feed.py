"""The inputs that the workers of a shard begin: in which order, and how fast (`--rate`).

The shared memory must be created before the workers are forked.
"""

import fcntl
import mmap
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from batchmill.runs.workers.inputs_in_progress import InputTable
from batchmill.runs.workers.worker_channel import anonymous_file

_COUNTS, _TURN = struct.Struct("qq"), struct.Struct("qd")
# A turn is lost if the worker that has it ends. So turns are given away shortly before their time.
_AHEAD_SECONDS, _PACE_MARGIN = 0.1, 0.01


class SharedTurns:
    """The inputs that the workers of a DataLoader may begin, each with its earliest time.

    Each worker takes the next ones when it has room for them. It locks a file while it takes them.
    The kernel removes the lock of a worker that is killed.

    Args:
        capacity: The most inputs that wait at a time.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = anonymous_file("batchmill-turns")
        # How many were put and taken so far, and a ring of turns.
        self._memory = mmap.mmap(-1, _COUNTS.size + capacity * _TURN.size)

    def put(self, turns: Sequence[tuple[int, float]], *, first: bool) -> None:
        """Let inputs begin, each at a time of the monotonic clock, before or after the others."""
        if not turns:
            return
        with _locked(self._lock):
            put, taken = _COUNTS.unpack_from(self._memory)
            begin = taken - len(turns) if first else put
            for number, turn in enumerate(turns, begin):
                _TURN.pack_into(self._memory, self._place(number), *turn)
            counts = (put, begin) if first else (put + len(turns), taken)
            _COUNTS.pack_into(self._memory, 0, *counts)

    @property
    def left(self) -> int:
        """The number of inputs that no worker has taken."""
        put, taken = _COUNTS.unpack_from(self._memory)
        return int(put - taken)

    def take(self, most: int = 1) -> list[tuple[int, float]]:
        """Return the next inputs and their times, as many as may begin."""
        if most < 1 or not self.left:
            return []
        with _locked(self._lock):
            put, taken = _COUNTS.unpack_from(self._memory)
            end = min(put, taken + most)
            _COUNTS.pack_into(self._memory, 0, put, end)
            places = map(self._place, range(taken, end))
            return [_TURN.unpack_from(self._memory, place) for place in places]

    def close(self) -> None:
        """Close the file, and release the memory."""
        os.close(self._lock)
        self._memory.close()

    def _place(self, number: int) -> int:
        return _COUNTS.size + number % self._capacity * _TURN.size


class Pace:
    """The times at which the attempts of a shard may begin, within its share of `--rate`.

    The first one waits, too, because another shard may have begun one a moment ago.

    Args:
        seconds: The shortest time between two attempts, in seconds. 0: no limit.
        now: The time of a monotonic clock.
    """

    def __init__(self, seconds: float, now: float) -> None:
        # A worker may begin one late and the next one in time. Then they are closer to each other.
        self._seconds = seconds * (1 + _PACE_MARGIN)
        self._next = now + self._seconds

    def next_turn(self, now: float, untaken: int = 0) -> float | None:
        """Return the time of the next turn; None if it is not near enough to be given away.

        Also None while turns are late because no worker has taken them. Otherwise many of them
        would begin at once later.
        """
        is_late = untaken and self._next - self._seconds < now
        if self._seconds and (is_late or self._next > now + _AHEAD_SECONDS):
            return None
        turn = max(now, self._next if self._seconds else now)
        self._next = turn + self._seconds
        return turn


class Feed:
    """Lets the workers of a shard begin inputs: in order, retries first, and within `--rate`.

    It has the inputs of the current pass that no worker has taken. Any thread may call its methods.

    `turns` are those that workers may take.

    Args:
        table: The inputs of the shard.
        pace_seconds: The shortest time between the begin of two attempts. 0: no limit.
    """

    def __init__(self, table: InputTable, pace_seconds: float) -> None:
        self.turns = SharedTurns(len(table))
        self._table = table
        self._pace = Pace(pace_seconds, time.monotonic())
        self._retries: deque[int] = deque()
        self._waiting: deque[int] = deque()
        self._lock = threading.Lock()

    def begin(self, indices: Sequence[int]) -> None:
        """Begin a pass with these inputs."""
        with self._lock:
            self._recall()
            self._waiting.extend(indices)

    def advance(self) -> bool:
        """Let workers begin the inputs whose turn has come. Return False if the pass is over."""
        with self._lock:
            now = time.monotonic()
            self._retries.extend(self._table.give_due(now))
            self.turns.put(self._next_of(self._retries, now), first=True)
            self.turns.put(self._next_of(self._waiting, now), first=False)
            return not self._table.pass_is_over(now)

    def shorten(self) -> int:
        """Leave out the last inputs that no worker has taken. Return the first of them."""
        with self._lock:
            waiting = self._recall()
            boundary = self._table.leave_out(waiting)
            self._waiting.extend(index for index in waiting if index < boundary)
        return boundary

    def _next_of(self, waiting: deque[int], now: float) -> list[tuple[int, float]]:
        """Remove and return the inputs whose turn has come, each with its time."""
        ready, untaken = [], self.turns.left
        while waiting and (turn := self._pace.next_turn(now, untaken)) is not None:
            ready.append((waiting.popleft(), turn))
        return ready

    def _recall(self) -> list[int]:
        """Take all inputs back that no worker has taken."""
        untaken = [index for index, _ in self.turns.take(self.turns.left)]
        untaken += [*self._retries, *self._waiting]
        self._retries.clear()
        self._waiting.clear()
        return untaken


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """Hold the lock of a file during the block."""
    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
