"""The objects that a DataLoader shares with its workers. A worker may die at any moment.

torch accepts a context of multiprocessing, and creates processes, queues and events with it.
"""

import queue
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.context import ForkContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import get_worker_info

from batchmill.runs.workers.batch_processor import BatchProcessor
from batchmill.runs.workers.processes import has_ended
from batchmill.runs.workers.ring_buffer import RingBuffer
from batchmill.runs.workers.stop_flags import SharedFlag

# The process of the shard looks for results at intervals, which grow while none arrives. Without
# batches, the only results are the ends of workers.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _LONGEST_WITHOUT_BATCHES = 0.0002, 0.003, 0.02
# Batches are continued, instead of waiting, after this time without a result.
_IDLE_SECONDS = 0.02


class Results:
    """The queue of the results of all workers, with a ring in shared memory for each.

    A queue of multiprocessing has one pipe with a lock. If a worker is killed while it holds the
    lock or has sent a half, all others stop.

    Args:
        count: The number of workers.
        workers: The workers. They may be added later.
        processor: Continues its batches in the process of the shard while that waits.

    Attributes:
        is_waiting: True while the process of the shard waits for a result.
    """

    def __init__(
        self, count: int, workers: Sequence[BaseProcess], processor: BatchProcessor | None
    ) -> None:
        self.is_waiting = False
        self._workers = workers
        self._processor = processor
        self._rings = [RingBuffer() for _ in range(count)]
        self._sender = ThreadPoolExecutor(1, "results")
        self._ended: set[int | None] = set()
        self._arrived: deque[bytes] = deque()

    def put(self, result: Any) -> None:
        """Send a result from a worker. A thread does it, and the worker continues meanwhile."""
        ring = self._rings[get_worker_info().id]  # type: ignore[union-attr]  # This is a worker.
        self._sender.submit(ring.write, bytes(ForkingPickler.dumps(result)))

    def close(self) -> None:
        """Do nothing. torch calls this at the end of a worker, which has sent all its results."""

    cancel_join_thread = close

    def get(self, timeout: float) -> Any:
        """Return the next result. Continue batches meanwhile.

        Raises:
            queue.Empty: No result has arrived within `timeout` seconds, or a worker has ended.
                torch then checks all workers.
        """
        idle_since = begun = time.monotonic()
        pause = _SHORTEST_PAUSE
        longest = _LONGEST_PAUSE if self._processor else _LONGEST_WITHOUT_BATCHES
        self.is_waiting = True
        try:
            while not self._has_arrived():
                now = time.monotonic()
                if self._has_end_of_worker() or now > begun + timeout:
                    raise queue.Empty
                processor = self._processor
                if processor and processor.is_waiting and now > idle_since + _IDLE_SECONDS:
                    self.is_waiting = False
                    processor.advance()
                    self.is_waiting, idle_since = True, time.monotonic()
                else:
                    time.sleep(pause)
                    pause = min(2 * pause, longest)
        finally:
            self.is_waiting = False
        return ForkingPickler.loads(self._arrived.popleft())

    def _has_arrived(self) -> bool:
        if not self._arrived:
            for ring in self._rings:
                self._arrived += ring.read()
        return bool(self._arrived)

    def _has_end_of_worker(self) -> bool:
        """Return whether a worker has ended since the last call."""
        pids = {worker.pid for worker in self._workers} - self._ended
        ended = {pid for pid in pids if pid and has_ended(pid)}
        self._ended |= ended
        return bool(ended)

    def release(self) -> None:
        """Release the memory of the process of the shard."""
        for ring in self._rings:
            ring.close()


class Indices:
    """The queue of the indices of one worker: a pipe, which only the shard's process writes to.

    A queue of multiprocessing has locks that all workers inherit, and a thread that writes.
    """

    def __init__(self) -> None:
        self._reader, self._writer = Pipe(duplex=False)

    def put(self, item: Any) -> None:
        """Send indices. torch sends a few at a time, so there is always room for them."""
        self._writer.send(item)

    def get(self, timeout: float) -> Any:
        """Return the next indices. Raises queue.Empty after `timeout` seconds."""
        if not self._reader.poll(timeout):
            raise queue.Empty
        return self._reader.recv()

    def cancel_join_thread(self) -> None:
        """Do nothing: there is no thread."""

    def close(self) -> None:
        """Close the pipe in this process."""
        self._reader.close()
        self._writer.close()


class WorkerContext(ForkContext):
    """Creates what one DataLoader shares with its workers.

    Args:
        count: The number of workers.
        processor: Continues its batches in the process of the shard while that waits for a result.

    Attributes:
        workers: The workers.
        results: The queue of their results.
    """

    def __init__(self, count: int, processor: BatchProcessor | None) -> None:
        super().__init__()
        self.workers: list[BaseProcess] = []
        self.results = Results(count, self.workers, processor)
        self._has_results = False

    def Process(self, *args: Any, **named: Any) -> BaseProcess:  # type: ignore[override]  # noqa: N802
        """Return a new worker."""
        self.workers.append(super().Process(*args, **named))
        return self.workers[-1]

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: ARG002, N802
        """Return a queue. torch first creates that of the results, then one for each worker."""
        if self._has_results:
            return Indices()
        self._has_results = True
        return self.results

    def Event(self) -> SharedFlag:  # type: ignore[override]  # noqa: N802
        """Return an event without a lock.

        An event of multiprocessing has a lock, which only `wait` needs. If a worker died while it
        held the lock, all other processes would wait forever. torch never waits for its event: it
        sets the event at the end, and workers read it between results.
        """
        return SharedFlag()
