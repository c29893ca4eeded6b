"""Moves files while the step runs: fetches the next inputs, and stores the last outputs.

Threads of the worker move the bytes. They exist only while the worker has a batch. If the worker
dies, only the input in its slot is at fault. Inputs whose files were being stored have no outcome
in the journal, so they are executed again.
"""

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.worker_channel import WorkerChannel

# The most fetches, and the most uploads, at a time.
MAX_TRANSFERS = 16
# The most bytes of inputs fetched ahead, and of outputs not stored yet. They are on the disk.
MAX_BYTES = 64 * 2**20
# Some web servers do not send sizes.
_USUAL_BYTES = MAX_BYTES // MAX_TRANSFERS
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


@dataclass
class TransferPipeline:
    """Overlaps the transfers of a worker with its steps.

    Attributes:
        fetch: Fetches an input. Called in a thread.
        discard: Removes the files of an input that was fetched but not executed.
        size: Returns the expected size of an input in bytes; negative if it is unknown.
    """

    fetch: Callable[[int], Any]
    discard: Callable[[int], object]
    size: Callable[[int], int]
    _ahead: "_FetchAhead | None" = None
    _behind: "_StoreBehind | None" = None

    @contextmanager
    def overlapping(self, indices: Sequence[int], channel: WorkerChannel) -> Iterator[None]:
        """Fetch these inputs ahead during the block, in their order. Then wait for all uploads."""
        with (
            ThreadPoolExecutor(MAX_TRANSFERS, "fetch") as fetches,
            ThreadPoolExecutor(MAX_TRANSFERS, "upload") as uploads,
        ):
            self._ahead = _FetchAhead(self, fetches, deque(indices))
            self._behind = _StoreBehind(uploads, channel)
            self._ahead.start()
            try:
                yield
                self._behind.wait()
            finally:
                self._ahead.stop()
                self._ahead = self._behind = None

    def fetched(self, index: int) -> Any:
        """Return the result of `fetch` for an input. Waits for it. Raises its errors."""
        return self._ahead.take(index) if self._ahead else self.fetch(index)

    def store(self, index: int, unstored: UnstoredOutcome) -> None:
        """Start to store the files of an input. Its outcome is sent when they are stored."""
        if self._behind:
            self._behind.add(index, unstored)

    def make_room(self) -> None:
        """Wait until few enough files are being stored. Call this before an input begins."""
        if self._behind:
            self._behind.wait(MAX_TRANSFERS, MAX_BYTES)

    def wait_in_place(self) -> None:
        """Wait for all uploads without changing the slot: it shows the input that is at fault."""
        if self._behind:
            self._behind.wait(shows=False)


@dataclass
class _FetchAhead:
    """The inputs of one batch that are fetched ahead."""

    pipeline: TransferPipeline
    pool: ThreadPoolExecutor
    waiting: deque[int]
    _futures: dict[int, Future[Any]] = field(default_factory=dict)
    _bytes: int = 0

    def start(self) -> None:
        """Start as many fetches as the limits allow."""
        while self.waiting and len(self._futures) < MAX_TRANSFERS:
            size = self._size(self.waiting[0])
            if self._bytes + size > MAX_BYTES:
                return  # The input is fetched when its turn comes.
            index = self.waiting.popleft()
            self._futures[index] = self.pool.submit(self.pipeline.fetch, index)
            self._bytes += size

    def take(self, index: int) -> Any:
        """Return the result of an input's fetch, and start the next fetches."""
        future = self._futures.pop(index, None)
        if future:
            self._bytes -= self._size(index)
        else:
            with suppress(ValueError):
                self.waiting.remove(index)
        self.start()
        try:
            return future.result() if future else self.pipeline.fetch(index)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        # The files fetched ahead may fill the disk. Without them, there may be enough room.
        self.stop()
        return self.pipeline.fetch(index)

    def stop(self) -> None:
        """Fetch nothing ahead any more, and remove what was fetched."""
        self.waiting.clear()
        for future in self._futures.values():
            future.cancel()
        for index, future in self._futures.items():
            with suppress(Exception):
                if not future.cancelled():
                    future.result()
            self.pipeline.discard(index)
        self._futures.clear()
        self._bytes = 0

    def _size(self, index: int) -> int:
        size = self.pipeline.size(index)
        return size if size >= 0 else _USUAL_BYTES


@dataclass
class _Storing:
    """The files of one input that are being stored. `done` is resolved when it is finished."""

    index: int
    outcome: UnstoredOutcome
    send: Callable[[int, Outcome], None]
    done: Future[None] = field(default_factory=Future)
    _left: int = field(init=False)
    _error: Exception | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._left = len(self.outcome.uploads)

    def upload(self, upload: Callable[[], object]) -> None:
        """Store one file. The thread that stores the last file sends the outcome."""
        error = None
        try:
            upload()
        except Exception as raised:
            error = raised
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            is_last = not self._left
        if is_last:
            try:
                self.send(self.index, self.outcome.finish(self._error))
                self.done.set_result(None)
            except BaseException as raised:
                self.done.set_exception(raised)


@dataclass
class _StoreBehind:
    """The inputs of a worker whose files are being stored."""

    pool: ThreadPoolExecutor
    channel: WorkerChannel
    _storing: deque[_Storing] = field(default_factory=deque)

    def add(self, index: int, outcome: UnstoredOutcome) -> None:
        storing = _Storing(index, outcome, self.channel.send)
        self._storing.append(storing)
        for upload in outcome.uploads:
            self.pool.submit(storing.upload, upload)

    def wait(self, inputs: int = 0, size: int = 0, *, shows: bool = True) -> None:
        """Wait until at most this number of inputs, with this size in bytes, is being stored."""
        while self._storing:
            if self._storing[0].done.done():
                self._storing.popleft().done.result()
                continue
            if len(self._storing) <= inputs and self._size() <= size:
                return
            if shows:
                self.channel.show(self._storing[0].index)
            self._storing.popleft().done.result()
            if shows:
                self.channel.leave()

    def _size(self) -> int:
        return sum(storing.outcome.size for storing in self._storing)
