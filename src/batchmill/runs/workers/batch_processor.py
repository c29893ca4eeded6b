"""Processes batches of samples in the shard's own process, and divides batches that fail."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from batchmill.core.outcome import Outcome, UnstoredOutcome
from batchmill.runs.workers.inputs_in_progress import InputTable
from batchmill.runs.workers.loaded_batches import (
    Batch,
    BatchCallbacks,
    BatchError,
    BegunBatch,
    BrokenDeviceError,
    free_device_memory,
)
from batchmill.runs.workers.processes import children, end_after
from batchmill.runs.workers.stop_flags import SharedFlag, Stop

_CHECK_SECONDS = 0.1
# A timer ends the process this long after a batch's timeout, even if no thread can run.
_LAST_RESORT_SECONDS = 30.0
_Result = TypeVar("_Result")


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


class _Failure(NamedTuple):
    out_of_memory: bool


@dataclass(kw_only=True)
class BatchProcessor:
    """Processes the batches of all DataLoaders of a shard, each in up to four stages.

    1. A thread copies the batch to page-locked memory, if `callbacks.pins_memory` is set.
    2. The batch begins. If a device processes it, this thread does not wait for it.
    3. When the next batch has begun, or none arrives, this thread waits for the results.
    4. If outputs are remote, a thread stores them.

    So a device has at most two batches, and works while the results of the first are read.
    `resolve` receives the outcomes of a batch, each with its input's index. `model_processes` has
    the pids of the processes that the model started. The model may need them for later batches.
    """

    callbacks: BatchCallbacks
    table: InputTable
    stop: Stop
    monitor: BatchMonitor
    resolve: Callable[[Iterable[tuple[int, Outcome]]], None]
    model_processes: frozenset[int] = frozenset()
    _has_succeeded: bool = False
    # False after two batches at a time have filled the device's memory.
    _overlaps: bool = True
    _drain: SharedFlag = field(init=False)
    _pinning: Future[Batch] | None = None
    _begun: BegunBatch | None = None
    _storing: Future[None] | None = None

    def process(self, batch: Batch, drain: SharedFlag) -> None:
        """Process a batch. If the batch fails, schedule its inputs again in smaller batches.

        The batch may be unfinished when this method returns: see `advance` and `finish`. `drain` is
        set to stop the current DataLoader from loading further inputs.
        """
        self._drain = drain
        if not self.callbacks.pins_memory:
            self._begin(batch)
            return
        previous, self._pinning = self._pinning, _in_thread("pin", batch.pin)
        if previous:
            self._begin(previous.result())

    @property
    def is_waiting(self) -> bool:
        """True if a batch is unfinished."""
        is_stored = self._storing is not None and self._storing.done()
        return bool(self._pinning or self._begun or is_stored)

    def advance(self) -> None:
        """Begin the batch that is in page-locked memory. Without one, finish the begun batch."""
        pinning, self._pinning = self._pinning, None
        if pinning:
            self._begin(pinning.result())
        elif self._begun:
            self._end()
        else:
            self._wait_until_stored()

    def finish(self) -> None:
        """Finish all batches, and wait until their files are stored and outcomes delivered."""
        while self.is_waiting:
            self.advance()
        self._wait_until_stored()

    def _begin(self, batch: Batch) -> None:
        """Begin a batch. Then finish the previous one, because the device has work again."""
        if self.stop.requested or len(batch.indices) > self.table.largest:
            return
        before = self._begun
        if before and (not self._overlaps or 1 in (len(before.indices), len(batch.indices))):
            self._end()  # An input that is alone on the device is the faulty one.
            before = None
        begun, failure = self._attempt(batch.indices, lambda: self.callbacks.begin(batch))
        self._end()
        if failure and failure.out_of_memory and before:
            self._overlaps = False
            # The batch is loaded again, because the step may have changed its data.
            self.table.divide(batch.indices, len(batch.indices))
            free_device_memory()
        elif failure:
            self._divide(batch.indices, out_of_memory=failure.out_of_memory)
        self._begun = begun
        if begun and not begun.is_in_flight:
            self._end()

    def _end(self) -> None:
        """Wait for the results of the begun batch, if any, and deliver its outcomes."""
        begun, self._begun = self._begun, None
        if not begun:
            return
        if not begun.is_in_flight:
            self._deliver(begun.indices, begun.finish())
            return
        outcomes, failure = self._attempt(begun.indices, begun.finish)
        if failure:
            self._divide(begun.indices, out_of_memory=failure.out_of_memory)
        if outcomes is not None:
            self._deliver(begun.indices, outcomes)

    def _attempt(
        self, indices: Sequence[int], call: Callable[[], _Result]
    ) -> tuple[_Result | None, _Failure | None]:
        """Call a function of a batch. Return its result, or how the batch failed."""
        with self.monitor.working_on(indices), self._recording_processes():
            try:
                return call(), None
            except BrokenDeviceError as error:
                self._begun = None  # It is lost, too.
                self._wait_until_stored()
                self.callbacks.end(str(error))
            except BatchError as error:
                # The error itself would keep the batch in memory, with the frames of its cause.
                return None, _Failure(error.out_of_memory)
        return None, None

    def _deliver(
        self, indices: Sequence[int], outcomes: Sequence[Outcome | UnstoredOutcome]
    ) -> None:
        self._has_succeeded = self._has_succeeded or any(
            isinstance(outcome, UnstoredOutcome) or outcome.kind == "ok" for outcome in outcomes
        )
        # The time to store files and to deliver outcomes is not that of the batch.
        self._wait_until_stored()
        if any(isinstance(outcome, UnstoredOutcome) for outcome in outcomes):
            self._storing = _in_thread("store", lambda: self._store(indices, outcomes))
        else:
            self._store(indices, outcomes)

    def _wait_until_stored(self) -> None:
        storing, self._storing = self._storing, None
        if storing:
            storing.result()

    def _store(self, indices: Sequence[int], outcomes: Sequence[Outcome | UnstoredOutcome]) -> None:
        self.resolve(zip(indices, self.callbacks.store(outcomes), strict=True))

    def _divide(self, indices: Sequence[int], *, out_of_memory: bool) -> None:
        half = max(1, len(indices) // 2)
        if out_of_memory:
            # Batches that are already loaded have the same size. Their inputs must also be loaded
            # again, in smaller batches.
            self.table.limit_batches(half)
            self._drain.set()
            free_device_memory()
            return
        self.table.divide(indices, half)
        if not self._has_succeeded:
            # The model may fail on every input. Find out before all inputs are loaded.
            self._drain.set()

    @contextmanager
    def _recording_processes(self) -> Iterator[None]:
        """Add the processes that start during the block to `model_processes`."""
        pid, before = os.getpid(), children(os.getpid())
        try:
            yield
        finally:
            if os.getpid() != pid:
                os._exit(0)  # The step forked this process. Only the original one may return.
            self.model_processes |= set(children(pid)) - set(before)


def _in_thread(name: str, call: Callable[[], _Result]) -> Future[_Result]:
    """Call a function in a thread, which ends then: the shard's process will be forked again."""
    thread = ThreadPoolExecutor(1, name)
    future = thread.submit(call)
    thread.shutdown(wait=False)
    return future
