"""The objects that a DataLoader shares with its workers. A worker may die at any moment.

torch accepts a context of multiprocessing, and creates processes, queues and events with it.
"""

import os
import queue
import struct
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.context import ForkContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from batchmill.workers.control import SharedFlag
from batchmill.workers.processes import ChildProcess

# If the kernel cannot report the end of a process, workers are checked at this interval.
_CHECK_SECONDS = 0.5
# Work that can be done instead of waiting begins after this time without a result.
_IDLE_SECONDS = 0.02
_READ_BYTES = 2**20
_SIZE = struct.Struct("<Q")


class IdleWork(Protocol):
    """Work that a process can do while it waits for a result."""

    @property
    def is_waiting(self) -> bool:
        """True if there is work."""

    def advance(self) -> None:
        """Do a part of the work."""


class Results:
    """The queue of the results of all workers: a pipe for each.

    A queue of multiprocessing has one pipe with a lock. A worker that is killed while it holds the
    lock, or has sent a half, would stop all others.

    Attributes:
        is_waiting: True while the process of the shard waits for a result.
    """

    def __init__(self, workers: int, idle_work: IdleWork | None) -> None:
        self.is_waiting = False
        self._idle_work = idle_work
        self._pipes = [os.pipe() for _ in range(workers)]
        self._writers = [writer for _, writer in self._pipes]
        self._sender = ThreadPoolExecutor(1, "results")
        self._workers: list[ChildProcess] = []
        self._begun = {reader: bytearray() for reader, _ in self._pipes}
        self._arrived: deque[bytes] = deque()

    # The side of a worker

    def enter(self, number: int) -> None:
        """Keep only the pipe of this worker."""
        for position, (reader, writer) in enumerate(self._pipes):
            os.close(reader)
            if position != number:
                os.close(writer)
        self._pipe = open(self._pipes[number][1], "wb")  # noqa: SIM115  # It ends with the worker.

    def put(self, result: Any) -> None:
        """Send a result in a thread. The worker continues meanwhile."""
        self._sender.submit(self._send, bytes(ForkingPickler.dumps(result)))

    def _send(self, data: bytes) -> None:
        self._pipe.write(_SIZE.pack(len(data)))
        self._pipe.write(data)
        self._pipe.flush()

    def close(self) -> None:
        """Do nothing. torch calls this at the end of a worker, which has sent all its results."""

    cancel_join_thread = close

    # The side of the process of the shard

    def watch(self, workers: Sequence[ChildProcess]) -> None:
        """Begin to receive from these workers, which have been forked."""
        self._workers = list(workers)
        self._close_writers()

    def get(self, timeout: float) -> Any:
        """Return the next result. Do the idle work meanwhile.

        Raises:
            queue.Empty: None has arrived within `timeout` seconds, or a worker has ended. torch
                then checks all workers.
        """
        deadline = time.monotonic() + timeout
        while not self._arrived:
            if self._has_end_of_worker() or time.monotonic() > deadline:
                raise queue.Empty
            work = self._idle_work if self._idle_work and self._idle_work.is_waiting else None
            if not self._receive(_IDLE_SECONDS if work else _CHECK_SECONDS) and work:
                work.advance()
        return ForkingPickler.loads(self._arrived.popleft())

    def _has_end_of_worker(self) -> bool:
        """Return whether a worker has ended since the last call."""
        ended = [worker for worker in self._workers if worker.has_ended()]
        self._workers = [worker for worker in self._workers if worker not in ended]
        return bool(ended)

    def _receive(self, seconds: float) -> bool:
        """Wait for bytes, or for the end of a worker. Return False after this time."""
        ends = [worker.descriptor for worker in self._workers if worker.descriptor is not None]
        self.is_waiting = True
        try:
            ready = wait([*self._begun, *ends], seconds)
        finally:
            self.is_waiting = False
        for reader in ready:
            if reader in self._begun:
                self._read(reader)
        return bool(ready)

    def _read(self, reader: int) -> None:
        data, begun = os.read(reader, _READ_BYTES), self._begun[reader]
        if not data:
            del self._begun[reader]  # The worker has closed its side.
        begun += data
        while len(begun) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(begun)[0]
            if len(begun) < end:
                return
            self._arrived.append(bytes(begun[_SIZE.size : end]))
            del begun[:end]

    def end(self) -> None:
        """Close the pipes."""
        for reader, _ in self._pipes:
            os.close(reader)
        self._close_writers()

    def _close_writers(self) -> None:
        while self._writers:
            os.close(self._writers.pop())


class WorkerContext(ForkContext):
    """Creates what one DataLoader shares with its workers.

    Attributes:
        workers: The processes of the workers.
        results: The queue of their results.
    """

    def __init__(self, workers: int, idle_work: IdleWork | None) -> None:
        super().__init__()
        self.workers: list[BaseProcess] = []
        self.results = Results(workers, idle_work)
        self._has_results = False

    def Process(self, *args: Any, **named: Any) -> BaseProcess:  # type: ignore[override]  # noqa: N802
        """Return a new worker."""
        self.workers.append(super().Process(*args, **named))
        return self.workers[-1]

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: N802
        """Return a queue. torch first creates that of the results, then one for each worker."""
        if self._has_results:
            return super().Queue(maxsize)
        self._has_results = True
        return self.results

    def Event(self) -> SharedFlag:  # type: ignore[override]  # noqa: N802
        """Return an event without a lock.

        An event of multiprocessing has a lock, which only `wait` needs. If a worker died while it
        held the lock, all other processes would wait forever. torch never waits for its event: it
        sets the event at the end, and workers read it between results.
        """
        return SharedFlag()
