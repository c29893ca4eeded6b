"""Limits the time of the batch that the process of a shard is processing."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass

from batchmill.runs.workers.processes import end_after

_CHECK_SECONDS = 0.1
# A timer ends the process this long after a batch's timeout, even if no thread can run.
_LAST_RESORT_SECONDS = 30.0


@dataclass
class BatchMonitor:
    """The batch that the shard's own process is processing, and when it began.

    If the batch exceeds the timeout, a thread calls `overdue` with the indices of its inputs. That
    function must end the process, because nothing else can end the batch.
    """

    overdue: Callable[[Sequence[int]], None]
    timeout_seconds: float | None
    at: tuple[float, Sequence[int]] | None = None

    @contextmanager
    def working_on(self, indices: Sequence[int]) -> Iterator[None]:
        """Record that a batch is processed during the block."""
        self.at = (time.monotonic(), indices)
        seconds = self.timeout_seconds
        latest = None if seconds is None else seconds + _LAST_RESORT_SECONDS
        try:
            with end_after(latest):
                yield
        finally:
            self.at = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check the current batch in a thread during the block."""
        ended = threading.Event()
        thread = threading.Thread(
            target=copy_context().run, args=(self._serve, ended), name="batches", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _serve(self, ended: threading.Event) -> None:
        seconds = self.timeout_seconds
        while not ended.wait(_CHECK_SECONDS):
            at = self.at
            if at and seconds is not None and time.monotonic() - at[0] > seconds:
                self.overdue(at[1])
                return
