"""How a shard's process controls its workers: when they start, stop, and begin no further input.

Flags in shared memory must be created before the workers are forked.
"""

import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Sequence
from multiprocessing.context import ForkContext

from batchmill.workers.worker_channel import anonymous_file

_INDEX, _TIME = struct.Struct("q"), struct.Struct("d")


class StartBarrier:
    """Makes workers wait until all workers and the watchdog have started."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def open(self, workers: int) -> None:
        """Let this number of workers pass, and close the parent's side."""
        os.write(self._writer, b"." * workers)
        os.close(self._writer)
        os.close(self._reader)

    def wait(self) -> None:
        """Wait, in a worker, until the barrier is open."""
        os.read(self._reader, 1)
        os.close(self._writer)
        os.close(self._reader)


class SharedFlag:
    """A flag that a shard's process and all its workers see. It is set once, and has no lock."""

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)

    def set(self) -> None:
        """Set the flag for all processes."""
        self._flag[0] = 1

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._flag[0] == 1


class WorkerContext(ForkContext):
    """Creates what a DataLoader shares with its workers. A worker may die at any moment.

    An event of multiprocessing has a lock, which only `wait` needs. If a worker died while it held
    the lock, all other processes would wait forever. torch never waits for its event: it sets the
    event at the end, and workers read it between batches. One shared byte is enough.
    """

    def Event(self) -> SharedFlag:  # type: ignore[override]  # noqa: N802
        """Return an event without a lock, and without `wait`."""
        return SharedFlag()


class StopIndex:
    """The first index that no worker may begin. All workers see it."""

    def __init__(self, index: int) -> None:
        self._index = mmap.mmap(-1, _INDEX.size)
        self.set(index)

    def set(self, index: int) -> None:
        """Change the index. Workers still finish inputs that they have begun."""
        _INDEX.pack_into(self._index, 0, index)

    def excludes(self, index: int) -> bool:
        """Return whether this input must not begin."""
        return bool(_INDEX.unpack_from(self._index)[0] <= index)


class SharedBatches:
    """The batches of a DataLoader. Each worker takes the next one when it has room for it.

    An open file has the numbers of the batches. All workers share its position, and one read moves
    it. Linux lets two reads of a file in memory begin at the same position, so a worker locks the
    file. The kernel removes the lock of a worker that is killed.
    """

    def __init__(self, batches: Sequence[Sequence[int]], workers: int) -> None:
        self._batches = batches
        self._workers = workers
        self._file = anonymous_file("batchmill-batches")
        with open(self._file, "wb", closefd=False) as file:
            file.writelines(map(_INDEX.pack, range(len(batches))))
        os.lseek(self._file, 0, os.SEEK_SET)
        # One byte per worker: 1 while it has a batch that it has not begun.
        self._ahead = mmap.mmap(-1, workers)

    @property
    def are_ahead(self) -> bool:
        """True if a worker has a batch that it has not begun."""
        return any(self._ahead[:])

    @property
    def left(self) -> int:
        """The number of batches that no worker has taken."""
        return len(self._batches) - os.lseek(self._file, 0, os.SEEK_CUR) // _INDEX.size

    def take(self) -> Sequence[int]:
        """Return the inputs of the next batch; nothing if all batches are taken."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            number = os.read(self._file, _INDEX.size)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        return self._batches[_INDEX.unpack(number)[0]] if number else ()

    def take_ahead(self, worker: int) -> Sequence[int]:
        """Return the inputs of a batch to execute later; nothing if idle workers may need it.

        The worker has begun the batch that it took ahead before.
        """
        # The flag is set first, so that the shard's process never overlooks the batch.
        self._ahead[worker] = 1
        batch = self.take() if self.left >= self._workers else ()
        self._ahead[worker] = bool(batch)
        return batch

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Pace:
    """Lets the workers of a shard begin attempts at most as often as a limit allows.

    The first one waits, too, because another shard may have begun one a moment ago.

    Args:
        seconds: The shortest time between two attempts, in seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = anonymous_file("batchmill-pace")
        self._next = mmap.mmap(-1, _TIME.size)
        _TIME.pack_into(self._next, 0, time.monotonic() + seconds)

    def next_turn(self) -> float:
        """Take the next turn. Return the seconds until it."""
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            now = time.monotonic()
            turn = max(now, _TIME.unpack_from(self._next)[0])
            _TIME.pack_into(self._next, 0, turn + self._seconds)
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
        return float(turn - now)


class Stop:
    """A request to begin no further inputs. Running inputs may take `grace_seconds` longer.

    Any thread may make the request.
    """

    def __init__(self, grace_seconds: float = 3.0) -> None:
        self._grace_seconds = grace_seconds
        self._event = threading.Event()
        self._requested_at = 0.0

    def request(self) -> None:
        """Make the request. A second call has no effect."""
        if not self._event.is_set():
            self._requested_at = time.monotonic()
            self._event.set()

    @property
    def requested(self) -> bool:
        """True if the request was made."""
        return self._event.is_set()

    @property
    def overdue(self) -> bool:
        """True if the grace period of running inputs is over."""
        return self.requested and time.monotonic() > self._requested_at + self._grace_seconds

    def wait(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the request is made."""
        self._event.wait(max(0.0, seconds))
