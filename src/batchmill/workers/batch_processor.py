"""Processes batches of samples in the shard's own process, and divides batches that fail."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.batches import (
    Batch,
    BatchCallbacks,
    BatchError,
    BrokenDeviceError,
    free_device_memory,
)
from batchmill.workers.control import SharedFlag, Stop
from batchmill.workers.input_queue import InputQueue
from batchmill.workers.processes import children
from batchmill.workers.watchdog import BatchMonitor


@dataclass(kw_only=True)
class BatchProcessor:
    """Processes the batches of all DataLoaders of a shard.

    `resolve` receives the outcomes of a batch, each with its input's index. `model_processes` has
    the pids of the processes that the model started. The model may need them for later batches.
    """

    callbacks: BatchCallbacks
    queue: InputQueue
    stop: Stop
    monitor: BatchMonitor
    resolve: Callable[[Iterable[tuple[int, Outcome]]], None]
    model_processes: frozenset[int] = frozenset()
    _has_succeeded: bool = False
    _storing: Future[None] | None = None

    def process(self, batch: Batch, drain: SharedFlag) -> None:
        """Process a batch. If the batch fails, schedule its inputs again in smaller batches.

        Remote files of a batch are stored while the next one is processed. `drain` is set to stop
        the current DataLoader from loading further inputs.
        """
        if self.stop.requested or len(batch.indices) > self.queue.largest:
            return
        outcomes, out_of_memory = None, False
        with self.monitor.working_on(batch.indices), self._recording_processes():
            try:
                outcomes = self.callbacks.process(batch)
            except BrokenDeviceError as error:
                self.finish()
                self.callbacks.end(str(error))
            except BatchError as error:
                out_of_memory = error.out_of_memory
        if outcomes is None:
            self._divide(batch, drain, out_of_memory=out_of_memory)
            return
        self._has_succeeded = self._has_succeeded or any(
            isinstance(outcome, UnstoredOutcome) or outcome.kind == "ok" for outcome in outcomes
        )
        # The time to store files and to deliver outcomes is not that of the batch.
        self.finish()
        if not any(isinstance(outcome, UnstoredOutcome) for outcome in outcomes):
            self._store(batch.indices, outcomes)
            return
        # The thread ends with its work, because the shard's process will be forked again.
        thread = ThreadPoolExecutor(1, "store")
        self._storing = thread.submit(self._store, batch.indices, outcomes)
        thread.shutdown(wait=False)

    def finish(self) -> None:
        """Wait until the files of the last batch are stored and its outcomes are delivered."""
        storing, self._storing = self._storing, None
        if storing:
            storing.result()

    def _store(self, indices: Sequence[int], outcomes: Sequence[Outcome | UnstoredOutcome]) -> None:
        self.resolve(zip(indices, self.callbacks.store(outcomes), strict=True))

    def _divide(self, batch: Batch, drain: SharedFlag, *, out_of_memory: bool) -> None:
        half = max(1, len(batch.indices) // 2)
        if out_of_memory:
            # Batches that are already loaded have the same size. Their inputs must also be loaded
            # again, in smaller batches.
            self.queue.limit_batches(half)
            drain.set()
            free_device_memory()
            return
        self.queue.divide(batch.indices, half)
        if not self._has_succeeded:
            # The model may fail on every input. Find out before all inputs are loaded.
            drain.set()

    @contextmanager
    def _recording_processes(self) -> Iterator[None]:
        """Add the processes that start during the block to `model_processes`."""
        before = children(os.getpid())
        try:
            yield
        finally:
            self.model_processes |= set(children(os.getpid())) - set(before)
