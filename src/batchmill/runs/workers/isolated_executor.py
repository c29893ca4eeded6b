"""Drives torch's DataLoaders so that each input gets one outcome, even if it kills its worker.

If a worker dies, a plain DataLoader loses all results and does not name the input. Here, a worker
writes each outcome to its channel at once, and its slot shows the current input. When a worker
dies, the other workers finish their current inputs. The slot of the dead worker names the faulty
input. A new DataLoader executes the rest. The faulty input is retried alone, within its retries.
"""

import gc
import os
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from batchmill.core.outcome import Outcome
from batchmill.core.storage.scratch import FOR_SOCKETS, scratch_folder, short_base
from batchmill.errors import WorkerError
from batchmill.runs.workers.batch_processor import BatchMonitor, BatchProcessor
from batchmill.runs.workers.input_feed import Feed
from batchmill.runs.workers.inputs_in_progress import InputTable, LoaderPass
from batchmill.runs.workers.loader_driver import LoaderDriver, ShardWork
from batchmill.runs.workers.processes import adopt_orphans, children, end_children
from batchmill.runs.workers.worker_exit import WorkerExit

# If a worker dies between inputs, no input caused it. After this number of DataLoaders in a row
# without an outcome, the executor raises WorkerError.
_MAX_IDLE_PASSES = 5
# The path of a socket for tensors has at most 107 bytes. The name of its folder takes 22, and
# multiprocessing adds 18.
_LONGEST_FOLDER = 67


@dataclass(kw_only=True)
class IsolatedExecutor(ShardWork):
    """Executes the inputs of a shard in DataLoader workers."""

    _last_exit: str = ""
    _sockets: Path | None = None
    _delivering: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.table = InputTable(self.count, self.retries, retried=self.retried)
        self._feed = Feed(self.table, self.concurrency.pace_seconds if self.concurrency else 0.0)
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
        return self._feed.shorten()

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
        with ExitStack() as stack:
            adopt_orphans()
            stack.callback(adopt_orphans, False)
            # torch creates half a million objects. Without `freeze`, a worker's garbage collector
            # would visit them, and the kernel would copy their memory for each worker.
            gc.freeze()
            stack.callback(gc.unfreeze)
            stack.callback(self._feed.turns.close)
            if self._processor:
                # Without it, each worker would create a folder, and a killed one would leave it.
                sockets = scratch_folder(FOR_SOCKETS, short_base(_LONGEST_FOLDER))
                self._sockets = stack.enter_context(sockets)
                stack.enter_context(self._processor.monitor.watching())
            self._run_passes(num_workers)

    def _run_passes(self, num_workers: int) -> None:
        """Run one DataLoader after another until no input is left or `stop` was requested."""
        table = self.table
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

    def _run_pass(self, inputs: LoaderPass) -> None:
        """Run one DataLoader until its workers have ended."""
        before = frozenset(children(os.getpid()))
        self._feed.begin(inputs.indices)
        driver = LoaderDriver(
            work=self,
            inputs=inputs,
            feed=self._feed,
            receive=self._resolve,
            processor=self._processor,
            sockets=self._sockets,
        )
        with ExitStack() as stack:
            stack.callback(self._end_processes, before)
            if self._processor:
                stack.callback(self._processor.finish)
            for worker_exit in driver.drive():
                self._resolve_lost(worker_exit)

    def _end_processes(self, before: frozenset[int]) -> None:
        """End all child processes that are not in `before`, except the model's processes."""
        end_children(before | (self._processor.model_processes if self._processor else frozenset()))

    def _resolve(self, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Record how attempts ended, and deliver final outcomes. Several threads call this."""
        ended, now = self.table.ended, time.monotonic()
        finals = []
        for index, outcome in outcomes:
            self.imported.update(outcome.imported)
            final = ended(index, outcome, now)
            if final:
                finals.append(final)
        # The watchdog's thread delivers outcomes of workers while this thread processes batches.
        with self._delivering:
            self.deliver(finals)

    def _resolve_lost(self, worker_exit: WorkerExit) -> None:
        """Record the outcome of the input that ended its worker, if any did."""
        self._last_exit = worker_exit.message
        if self.stop.requested:
            return  # The watchdog may have killed the worker because of the request.
        cause = self.table.worker_lost(worker_exit.begun, worker_exit.cause)
        if cause is not None:
            self._resolve([(cause, self.lost(cause, worker_exit))])
