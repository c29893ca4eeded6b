"""Drives torch's DataLoaders so that each input gets one outcome, even if it kills its worker.

If a worker dies, a plain DataLoader loses all results and does not name the input. Here, a worker
writes each outcome to its channel at once, and its slot shows the current input. When a worker
dies, the other workers finish their current inputs. The slot of the dead worker names the faulty
input. A new DataLoader executes the rest. The faulty input is retried alone, within its retries.
"""

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batchmill.errors import WorkerError
from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.async_inputs import Concurrency
from batchmill.workers.batch_processor import BatchProcessor
from batchmill.workers.control import Pace, Stop, StopIndex
from batchmill.workers.input_table import InputTable, LoaderPass
from batchmill.workers.loaded_batches import BatchCallbacks, Sample, socket_folder
from batchmill.workers.loader_driver import LoaderDriver
from batchmill.workers.pipeline import TransferPipeline
from batchmill.workers.processes import adopt_orphans, children, kill_descendants, reap
from batchmill.workers.watchdog import BatchMonitor, Limits
from batchmill.workers.worker_channel import WorkerChannel
from batchmill.workers.worker_exit import WorkerExit

logger = logging.getLogger(__name__)

# If a worker dies between inputs, no input caused it. After this number of DataLoaders in a row
# without an outcome, the executor raises WorkerError.
_MAX_IDLE_PASSES = 5


@dataclass
class IsolatedExecutor:
    """Executes inputs, each identified by its index, in DataLoader workers.

    Attributes:
        count: The number of inputs.
        run: Executes one input in a worker, and never raises. With `processing`, it may return a
            sample instead of an outcome.
        lost: Returns the outcome of an input whose worker died.
        deliver: Receives each final outcome once, several at a time, also from other threads.
        limits: The limits of one input.
        retries: How often an input is executed again after a failure.
        warn: Called with a warning about a worker, also from other threads.
        stop: The request to stop. After it, inputs without an outcome stay without one.
        processing: The functions that process samples; None if `run` returns only outcomes.
        weights: The weight of each input. Batches then have about the same weight, and heavy inputs
            are in smaller batches.
        pipeline: Moves remote files while steps run. Without it, `run` may not return an
            `UnstoredOutcome`.
        concurrency: Runs several inputs at a time in each worker, instead of `run`. None if the
            step is not async.
    """

    count: int
    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    lost: Callable[[int, WorkerExit], Outcome]
    deliver: Callable[[Sequence[Outcome]], None]
    limits: Limits
    retries: int
    warn: Callable[[str], None] = logger.warning
    stop: Stop = field(default_factory=Stop)
    processing: BatchCallbacks | None = None
    weights: NDArray[np.int64] | None = None
    pipeline: TransferPipeline | None = None
    concurrency: Concurrency | None = None
    _channels: Sequence[WorkerChannel] = ()
    _furthest: int = -1
    _last_exit: str = ""
    _sockets: Path | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _delivering: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.table = InputTable(self.count, self.retries)
        self._stop_index = StopIndex(self.count)
        self._processor: BatchProcessor | None = None
        if self.processing:
            self._processor = BatchProcessor(
                callbacks=self.processing,
                table=self.table,
                stop=self.stop,
                monitor=BatchMonitor(self.processing.overdue, self.limits.timeout_seconds),
                resolve=self._resolve,
            )

    def shorten(self) -> int:
        """Leave out the inputs that have not begun. Any thread may call this method.

        Returns:
            The first index that is left out. All inputs before it will be executed.
        """
        with self._lock:
            # First stop all workers, so that no worker begins an input while `last` is read.
            self._stop_index.set(0)
            boundary = 1 + max([0, self._furthest, *(channel.last for channel in self._channels)])
            self._stop_index.set(boundary)
            self.table.leave_out(range(boundary, self.count))
        return boundary

    def execute(self, *, batch_size: int, num_workers: int) -> None:
        """Execute all inputs. Return when each has its final outcome, or `stop` was requested.

        Args:
            batch_size: The size of the largest batch.
            num_workers: The number of DataLoader workers. 0 means one.

        Raises:
            WorkerError: Workers keep dying without an outcome.
            StoreError: No folder for temporary files can be created.
            Exception: Any error that `deliver` raises.
        """
        self.table.largest = batch_size
        adopt_orphans()
        # torch creates half a million objects. Without `freeze`, a worker's garbage collector would
        # visit them, and the kernel would copy their memory for each worker.
        gc.freeze()
        try:
            with ExitStack() as stack:
                if self._processor:
                    self._sockets = stack.enter_context(socket_folder())
                    stack.enter_context(self._processor.monitor.watching())
                self._run_passes(num_workers)
        finally:
            gc.unfreeze()
            adopt_orphans(False)

    def _run_passes(self, num_workers: int) -> None:
        """Run one DataLoader after another until no input is left or `stop` was requested."""
        table = self.table
        seconds = self.concurrency.pace_seconds if self.concurrency else 0.0
        self._pace = Pace(seconds, time.monotonic())
        idle_passes = 0
        while table and not self.stop.requested:
            now = time.monotonic()
            pause = table.due_in(now)
            if pause:
                self.stop.wait(pause)
                continue
            before = table.progress
            self._run_pass(table.give(now, num_workers))
            table.give_back()
            idle_passes = idle_passes + 1 if table.progress == before else 0
            if idle_passes and self.processing and table.largest > 1:
                table.limit_batches(table.largest // 2)  # In a batch of one, the input is known.
                idle_passes = 0
            if idle_passes > _MAX_IDLE_PASSES:
                raise WorkerError(self._last_exit or "all outcomes were lost")

    def _run_pass(self, work: LoaderPass) -> None:
        """Run one DataLoader until it is exhausted or a worker has died."""
        slots = self.concurrency.inputs if self.concurrency and not work.alone else 1
        batches = (
            len(work.indices) if self.concurrency else -(-len(work.indices) // work.batch_size)
        )
        workers = max(1, min(work.num_workers, batches))
        before = frozenset(children(os.getpid()))
        channels = [WorkerChannel(slots) for _ in range(workers)]
        self._channels = channels
        try:
            self._driver(work, channels).drive()
        finally:
            with self._lock:
                self._furthest = max(self._furthest, *(channel.last for channel in channels))
                self._channels = ()
            self._end_processes(before)
            for channel in channels:
                channel.close()

    def _driver(self, work: LoaderPass, channels: Sequence[WorkerChannel]) -> LoaderDriver:
        return LoaderDriver(
            work=work,
            channels=channels,
            run=self.run,
            pipeline=self.pipeline,
            concurrency=self.concurrency,
            receive=self._resolve,
            warn=self.warn,
            lost=self._resolve_lost,
            table=self.table,
            pace=self._pace,
            limits=self.limits,
            stop=self.stop,
            stop_index=self._stop_index,
            processor=self._processor,
            weights=None if self.processing else self.weights,
            sockets=self._sockets,
        )

    def _end_processes(self, before: frozenset[int]) -> None:
        """Kill all child processes that are not in `before`, except the model's processes."""
        spare = before | (self._processor.model_processes if self._processor else frozenset())
        kill_descendants(spare)
        for pid in set(children(os.getpid())) - spare:
            reap(pid)

    def _resolve(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Record how attempts ended, and deliver final outcomes. Several threads call this."""
        ended, now = self.table.ended, time.monotonic()
        self._deliver(
            [final for index, outcome in outcomes if (final := ended(index, outcome, now))]
        )

    def _resolve_lost(self, worker_exit: WorkerExit) -> None:
        """Record the outcome of the input that ended its worker, if any did."""
        self._last_exit = worker_exit.message
        if self.stop.requested:
            return  # The watchdog may have killed the worker because of the request.
        cause = self.table.worker_lost(worker_exit.begun, worker_exit.cause)
        if cause is not None:
            self._resolve([(cause, self.lost(cause, worker_exit))])

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        # The watchdog's thread delivers outcomes of workers while this thread processes batches.
        with self._delivering:
            self.deliver(outcomes)
