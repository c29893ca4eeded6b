"""The shard processes of a run, and the one that is kept ready for the next run."""

import atexit
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from batchmill.runs.shards.process import ShardProcess


class ShardProcesses:
    """The shard processes of one run. An idle process is reused for the next shard.

    `was_used` is True if a shard has run in one of them.
    """

    def __init__(self) -> None:
        self.was_used = False
        self._idle: list[ShardProcess] = []
        self._busy: list[ShardProcess] = []
        self._lock = threading.Lock()

    def warm_up(self, place: str) -> None:
        """Start a process for the first shard now, because importing torch takes a second.

        If a process exists, nothing is started.

        Args:
            place: The dataset.
        """
        if not self._idle:
            self._idle.append(_take_ready() or ShardProcess(place))

    @contextmanager
    def one(self, gpus: Sequence[str] = ()) -> Iterator[ShardProcess]:
        """Yield a process for this block. If the block raises an error, the process is killed.

        Args:
            gpus: GPUs, by their names in CUDA_VISIBLE_DEVICES. The process uses only one of them,
                which no other busy process uses if possible.
        """
        with self._lock:
            self.was_used = True
            process = self._idle.pop() if self._idle else None
        process = process or _take_ready() or ShardProcess()
        with self._lock:
            if gpus and not process.gpu:
                used = [other.gpu for other in (*self._busy, *self._idle)]
                process.gpu = min(gpus, key=used.count)
            self._busy.append(process)
        try:
            yield process
        except BaseException:
            process.kill()
            process.end()
            raise
        else:
            self._idle.append(process)
        finally:
            self._busy.remove(process)

    def release(self) -> None:
        """Request that idle processes end. Does not wait."""
        for process in self._idle:
            process.release()

    def end(self) -> None:
        """End idle processes, and wait for them."""
        self.release()
        while self._idle:
            self._idle.pop().end()


# At most one process, for the next run of this Python session.
_ready: list[ShardProcess] = []
_ready_lock = threading.Lock()
_keeps_ready = False


def keep_ready() -> None:
    """Keep a process ready for the next run of this Python session, because torch loads slowly.

    After each run with shard processes, another one is started. It ends with this process. The
    process of the run itself cannot be used again: it has imported the modules of the step, which
    the user may change.
    """
    global _keeps_ready
    if not _keeps_ready:
        _keeps_ready = True
        atexit.register(_end_ready)


def _make_ready() -> None:
    with _ready_lock:
        if _keeps_ready and not _ready:
            _ready.append(ShardProcess())


def _take_ready() -> ShardProcess | None:
    """Return the process that is ready. None if it is missing, or this process has changed."""
    with _ready_lock:
        if _ready and _ready[0].is_current:
            return _ready.pop()
    _end_ready()
    return None


def _end_ready() -> None:
    with _ready_lock:
        process = _ready.pop() if _ready else None
        # In a fork of this process, the process that is ready belongs to the parent.
        if process and process.parent == os.getpid():
            process.kill()
            process.end()


_shared: ContextVar[ShardProcesses | None] = ContextVar("shard_processes", default=None)


@contextmanager
def shard_processes() -> Iterator[ShardProcesses]:
    """Yield the processes of the surrounding block, or new processes that end with this block."""
    around = _shared.get()
    if around:
        yield around
        return
    processes = ShardProcesses()
    token = _shared.set(processes)
    try:
        yield processes
    finally:
        _shared.reset(token)
        processes.end()
        if processes.was_used:
            _make_ready()
