"""Moves files while the step runs: fetches the next inputs, and stores the last outputs.

Threads of the worker move the bytes. They also work between two batches, because a worker takes its
next batch when it begins the one before. If the worker dies, only the input in its slot is at
fault. Inputs whose files were being stored have no outcome in the journal, so they are executed
again.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from batchmill.core.outcome import UnstoredOutcome
from batchmill.core.storage.store_errors import FULL
from batchmill.runs.workers.input_feed import SharedTurns
from batchmill.runs.workers.worker import this_worker

# The most fetches, and the most uploads, at a time.
MAX_TRANSFERS = 32
# The most bytes of inputs fetched ahead, and of outputs not stored yet. They are on the disk.
MAX_BYTES = 64 * 2**20
# Some web servers do not send sizes.
_USUAL_BYTES = MAX_BYTES // MAX_TRANSFERS


@dataclass(frozen=True)
class _Storing:
    """An input whose files are being stored: its index, their size, and the thread that waits."""

    index: int
    size: int
    done: Future[None]


@dataclass
class Uploads:
    """The inputs of a worker whose files are being stored."""

    # Each input also has a thread that waits for its uploads, and then sends its outcome at once.
    # The uploads begin first, so they never wait for such a thread.
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2 * MAX_TRANSFERS, "upload")
    )
    _storing: deque[_Storing] = field(default_factory=deque)

    def add(self, index: int, outcome: UnstoredOutcome) -> None:
        """Start to store the files of an input. Its outcome is sent when they are stored."""
        uploads = [self._threads.submit(upload) for upload in outcome.uploads]
        done = self._threads.submit(self._send, index, outcome, uploads)
        self._storing.append(_Storing(index, outcome.size, done))

    def _send(self, index: int, outcome: UnstoredOutcome, uploads: list[Future[object]]) -> None:
        """Wait for the uploads of an input, and send its outcome."""
        error = None
        for upload in uploads:
            try:
                upload.result()
            except Exception as raised:
                error = error or raised
        this_worker.channel.send(index, outcome.finish(error))

    def wait(self, inputs: int = 0, size: int = 0, *, shows: bool = True) -> None:
        """Wait until at most this number of inputs, with this size in bytes, is being stored.

        Unless `shows` is set, the slot keeps showing the input that is at fault.
        """
        while self._storing:
            first, bytes_left = self._storing[0], sum(storing.size for storing in self._storing)
            if not first.done.done() and len(self._storing) <= inputs and bytes_left <= size:
                return
            if shows:
                this_worker.channel.show(first.index)
            self._storing.popleft().done.result()
            if shows:
                this_worker.channel.leave()


@dataclass
class TransferPipeline:
    """Overlaps the transfers of a worker with its steps.

    Attributes:
        fetch: Fetches an input. Called in a thread.
        discard: Removes the files of an input that was fetched but not executed.
        size: Returns the expected size of an input in bytes; negative if it is unknown.
        uploads: The inputs whose files are being stored.
    """

    fetch: Callable[[int], Any]
    discard: Callable[[int], object]
    size: Callable[[int], int]
    uploads: Uploads = field(default_factory=Uploads)
    # The pools have no thread before the worker is forked.
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MAX_TRANSFERS, "fetch")
    )
    # Inputs that were taken and not executed, and those of them that are not fetched.
    _ahead: deque[int] = field(default_factory=deque)
    _waiting: deque[int] = field(default_factory=deque)
    _futures: dict[int, Future[Any]] = field(default_factory=dict)
    _bytes: int = 0

    def next(self, most: int, ahead: int, turns: SharedTurns) -> list[int]:
        """Return at most `most` inputs to execute next, and begin to fetch `ahead` further ones."""
        wanted = most + min(ahead, MAX_TRANSFERS) - len(self._ahead)
        taken = [index for index, _ in turns.take(wanted)]
        self._ahead += taken
        self._waiting += taken
        self._start()
        return [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]

    def end(self) -> None:
        """Wait for all uploads, and remove the files that were fetched ahead."""
        self.uploads.wait()
        self._clear()

    def fetched(self, index: int) -> Any:
        """Return the result of `fetch` for an input. Waits for it. Raises its errors."""
        future = self._futures.pop(index, None)
        if future:
            self._bytes -= self._size(index)
        else:
            with suppress(ValueError):
                self._waiting.remove(index)
        self._start()
        try:
            return future.result() if future else self.fetch(index)
        except OSError as error:
            if error.errno not in FULL:
                raise
        # The files fetched ahead may fill the disk. Without them, there may be enough room.
        self._clear()
        return self.fetch(index)

    def _start(self) -> None:
        """Start as many fetches as the limits allow."""
        while self._waiting and len(self._futures) < MAX_TRANSFERS:
            size = self._size(self._waiting[0])
            if self._bytes + size > MAX_BYTES:
                return  # The input is fetched when its turn comes.
            index = self._waiting.popleft()
            self._futures[index] = self._pool.submit(self.fetch, index)
            self._bytes += size

    def _clear(self) -> None:
        """Remove what was fetched, and fetch the waiting inputs only when their turn comes."""
        self._waiting.clear()
        for future in self._futures.values():
            future.cancel()
        for index, future in self._futures.items():
            with suppress(Exception):
                future.result()
            self.discard(index)
        self._futures.clear()
        self._bytes = 0

    def _size(self, index: int) -> int:
        size = self.size(index)
        return size if size >= 0 else _USUAL_BYTES
