"""Drives torch's DataLoader so that each input has one outcome, whatever the input does.

A DataLoader alone loses everything when a worker dies, and never names the file. Here a worker
hands over each outcome as soon as it has it, and says in its slot which input it is at. When a
worker dies, the others finish what they are at, the slot of the dead one tells who is to blame, and
a new DataLoader takes the rest. One to blame runs again alone, as often as its retries allow.
"""

import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batchmill.errors import WorkerError
from batchmill.execution.isolation.batches import (
    Batch,
    BatchCallbacks,
    BatchError,
    BrokenDeviceError,
    Sample,
    folder_for_sockets,
    free_device_memory,
)
from batchmill.execution.isolation.dataloader import (
    WorkerDiedError,
    as_it_is,
    iterating,
    wait_until_idle,
)
from batchmill.execution.isolation.input_queue import InputQueue, LoaderPass, RetryPolicy
from batchmill.execution.isolation.memory import kernel_oom_kills
from batchmill.execution.isolation.processes import (
    adopt_orphans,
    children,
    kill_descendants,
    kill_tree,
    reap,
)
from batchmill.execution.isolation.stop import Stop
from batchmill.execution.isolation.watchdog import BatchMonitor, Limits, Watchdog
from batchmill.execution.isolation.worker import (
    Collate,
    DrainFlag,
    GuardedInputs,
    StartBarrier,
    StopIndex,
    begin_worker,
)
from batchmill.execution.isolation.worker_channel import WorkerChannel
from batchmill.execution.isolation.worker_exit import WorkerExit, death_of
from batchmill.outcome import Outcome
from batchmill.planning.batching import cut

# Workers that die between inputs are nobody's fault; so many DataLoaders in a row without an
# outcome are ours.
_MAX_IDLE_PASSES = 5


@dataclass
class IsolatedExecutor:
    """The execution of some inputs, each by its index, in DataLoader workers.

    `run` executes one input in a worker and never raises; or it gives a sample, for `processing`.
    `lost` makes the outcome of an input whose worker died; `deliver` is given each final outcome
    once, several at a time, from other threads too. With `weights`, batches are about even in them,
    and smaller where inputs are heavy. After `stop` was requested, inputs that have no outcome yet
    get none.
    """

    count: int
    run: Callable[[int], Outcome | Sample]
    lost: Callable[[int, WorkerExit], Outcome]
    deliver: Callable[[Sequence[Outcome]], None]
    limits: Limits
    retry: RetryPolicy
    stop: Stop = field(default_factory=Stop)
    processing: BatchCallbacks | None = None
    weights: NDArray[np.int64] | None = None
    _has_processed: bool = False
    _spared: frozenset[int] = frozenset()
    _stations: Sequence[WorkerChannel] = ()
    _furthest: int = -1
    _sockets: Path | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _delivering: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._pending = InputQueue(self.count, self.retry, self.stop.wait)
        self._horizon = StopIndex(self.count)
        self._desk = BatchMonitor(
            self.processing.overdue if self.processing else None, self.limits.timeout_seconds
        )

    def shorten(self) -> int:
        """Leave out what is not begun; return the index from which on inputs are left out.

        It leaves nothing that a worker might be at: what lies before that index will be executed.
        Any thread may call it.
        """
        with self._lock:
            self._horizon.set(0)
            boundary = 1 + max([0, self._furthest, *(station.last for station in self._stations)])
            self._horizon.set(boundary)
            self._pending.leave_out(range(boundary, self.count))
        return boundary

    def execute(self, *, batch_size: int, num_workers: int) -> None:
        """Execute all inputs; returns when each has its final outcome, or `stop` was requested.

        Raises WorkerError if workers bring forth no outcome any more, StoreError if there is no
        place for temporary files, and what `deliver` raises.
        """
        self._pending.begin(batch_size)
        adopt_orphans()
        # What there is already, of which torch makes half a million objects, is looked through no
        # more for garbage: a worker would copy their memory by doing so.
        gc.freeze()
        try:
            with folder_for_sockets() if self.processing else nullcontext() as self._sockets:
                self._go_on(num_workers)
        finally:
            gc.unfreeze()
            adopt_orphans(False)

    def _go_on(self, num_workers: int) -> None:
        """Run one DataLoader after another, until nothing is pending or `stop` was requested."""
        pending = self._pending
        idle_passes = 0
        while pending and not self.stop.requested:
            work = pending.next(num_workers)
            before = pending.taken
            deaths = self._pass(work)
            if self.stop.requested:
                break  # They may have been killed for that.
            for death in deaths:
                self._blame(death)
            idle_passes = idle_passes + 1 if pending.taken == before else 0
            if idle_passes and self.processing and pending.largest > 1:
                pending.largest //= 2  # One by one, it shows who it is that ends workers.
                idle_passes = 0
            if idle_passes > _MAX_IDLE_PASSES:
                raise WorkerError(deaths[0].message if deaths else "its outcomes are lost")
            pending.come_again(work)

    def _pass(self, work: LoaderPass) -> list[WorkerExit]:
        """Run one DataLoader until it is through, or a worker has died; return the deaths."""
        workers = max(1, min(work.num_workers, -(-len(work.indices) // work.batch_size)))
        before = frozenset(children(os.getpid()))
        stations = [WorkerChannel() for _ in range(workers)]
        self._stations = stations
        try:
            return self._drive(work.indices, work.batch_size, stations)
        finally:
            with self._lock:
                self._furthest = max(self._furthest, *(station.last for station in stations))
                self._stations = ()
            before |= self._spared
            kill_descendants(os.getpid(), spare=before)
            for pid in set(children(os.getpid())) - before:
                reap(pid)
            for station in stations:
                station.close()

    def _drive(
        self, indices: Sequence[int], batch_size: int, stations: Sequence[WorkerChannel]
    ) -> list[WorkerExit]:
        weights = None if self.processing else self.weights
        loads = np.ones(len(indices), np.int64) if weights is None else weights[list(indices)]
        oom_kills = kernel_oom_kills()
        drain = DrainFlag()
        gate = StartBarrier()
        with iterating(
            GuardedInputs(indices=indices, run=self.run, drain=drain, horizon=self._horizon),
            cut(loads, batch_size, len(stations), even=weights is not None),
            len(stations),
            Collate(self.processing.collate) if self.processing else as_it_is,
            partial(
                begin_worker,
                stations=stations,
                gate=gate,
                parent=os.getpid(),
                # Where memory is counted, it would be another input's.
                keeps_memory=self.limits.memory_bytes is None,
                sockets=self._sockets,
            ),
        ) as batches:
            processes = list(batches.workers)
            pids = [process.pid for process in processes]
            watchdog = Watchdog(
                stations, pids, self.limits, drain, self.stop, self._receive, self._desk
            )
            watchdog.start()
            died = False
            try:
                gate.open(len(stations))
                for batch in batches:
                    if self.processing and batch.indices:
                        self._process(self.processing, batch, drain)
            except WorkerDiedError:
                died = True
            except BaseException:  # Cancelled: what is not finished will run another time.
                for process in processes:
                    kill_tree(process.pid)
                batches.abandon()
                raise
            finally:
                drain.set()
                wait_until_idle(stations, processes)
                batches.end()
                watchdog.stop()
                for process in processes:  # One may have been told not to end.
                    kill_tree(process.pid)
                    process.join()

        def killed_by_kernel() -> bool:
            return kernel_oom_kills() > oom_kills

        return [
            death_of(station, process.exitcode, watchdog.verdicts.get(number), killed_by_kernel)
            for number, (station, process) in enumerate(zip(stations, processes, strict=True))
            if number in watchdog.verdicts
            or (station.occupied and station.occupied.index in self._pending)
            or (process.exitcode and died)
        ]

    def _process(self, processing: BatchCallbacks, batch: Batch, drain: DrainFlag) -> None:
        """Process a batch; one with which this does not succeed comes again, in smaller ones."""
        if self.stop.requested or len(batch.indices) > self._pending.largest:
            return
        out_of_memory = False
        with self._desk.working_on(batch.indices), self._sparing():
            try:
                outcomes = processing.process(batch)
                self._settle_all(zip(batch.indices, outcomes, strict=True))
                self._has_processed = self._has_processed or any(
                    outcome.kind == "ok" for outcome in outcomes
                )
                return
            except BrokenDeviceError as error:
                processing.end(str(error))
            except BatchError as error:
                out_of_memory = error.out_of_memory
        half = max(1, len(batch.indices) // 2)
        if out_of_memory:
            # What comes next is as large: it, too, is loaded again in smaller batches.
            self._pending.bound_batches(half)
            drain.set()
            free_device_memory()
            return
        self._pending.divide(batch.indices, half)
        if not self._has_processed:
            drain.set()  # If it is the model's fault, that is to be seen before all is loaded.

    @contextmanager
    def _sparing(self) -> Iterator[None]:
        """Leave alone what a model starts of processes: it may want them for the next batch."""
        before = children(os.getpid())
        try:
            yield
        finally:
            self._spared |= set(children(os.getpid())) - set(before)

    def _receive(self, arrived: Sequence[tuple[int, Outcome]]) -> None:
        """Take outcomes from workers; called by the watchdog's thread."""
        self._settle_all(arrived)

    def _settle_all(self, arrived: Iterable[tuple[int, Outcome]]) -> None:
        settle = self._pending.settle
        self._deliver(
            [
                final
                for index, outcome in arrived
                if (final := settle(index, outcome, again=outcome.kind in ("failed", "oom")))
            ]
        )

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        with self._delivering:  # Workers' outcomes arrive while batches are processed.
            self.deliver(outcomes)

    def _blame(self, death: WorkerExit) -> None:
        if death.index is None or death.index not in self._pending:
            return
        again = death.kind in ("crashed", "oom")
        lost = self.lost(death.index, death)
        final = self._pending.settle(death.index, lost, again=again, alone=True)
        if final:
            self._deliver([final])
