"""Drives torch's DataLoader so that each input has one outcome, whatever the input does.

A DataLoader alone loses everything when a worker dies, and never names the file. Here a worker
hands over each outcome as soon as it has it, and says in its slot which input it is at. When a
worker dies, the others finish what they are at, the slot of the dead one tells who is to blame, and
a new DataLoader takes the rest. One to blame runs again alone, as often as its retries allow.
"""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchmill.batching import cut
from batchmill.errors import WorkerError
from batchmill.isolation.batches import (
    Batch,
    BatchError,
    BrokenDeviceError,
    Processing,
    Sample,
    free_device_memory,
)
from batchmill.isolation.dataloader import (
    WorkerDiedError,
    as_it_is,
    iterating,
    wait_until_idle,
)
from batchmill.isolation.memory import kernel_oom_kills
from batchmill.isolation.processes import (
    adopt_orphans,
    children,
    kill_descendants,
    kill_tree,
    reap,
)
from batchmill.isolation.station import Station
from batchmill.isolation.stop import Stop
from batchmill.isolation.watchdog import Desk, Limits, Verdict, Watchdog, signal_name
from batchmill.isolation.worker import (
    Collate,
    Drain,
    Gate,
    GuardedInputs,
    Horizon,
    begin_worker,
)
from batchmill.outcome import Kind, Outcome

# Workers that die between inputs are nobody's fault; so many DataLoaders in a row without an
# outcome are ours.
_MAX_IDLE_PASSES = 5


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often an input may be executed again for its own faults, and after how many seconds.

    The n-th retry waits `backoff_seconds` x 2^(n-1), at most `max_backoff_seconds`.
    """

    retries: int = 0
    backoff_seconds: float = 0.5
    max_backoff_seconds: float = 30.0

    def pause(self, attempts: int) -> float:
        """Return the seconds to wait after so many attempts."""
        return min(self.max_backoff_seconds, self.backoff_seconds * 2.0 ** (attempts - 1))


@dataclass(frozen=True)
class Death:
    """How a worker ended: its input (None if it was idle), the kind of outcome, and the reason."""

    index: int | None
    kind: Kind
    error: str
    message: str
    log: str
    seconds: float


class _Work(NamedTuple):
    """What one DataLoader is to do."""

    indices: Sequence[int]
    batch_size: int
    num_workers: int


class _Retry(NamedTuple):
    due: float
    alone: bool


@dataclass
class IsolatedRun:
    """The execution of some inputs, each by its index, in DataLoader workers.

    `run` executes one input in a worker and never raises; or it gives a sample, for `processing`.
    `lost` makes the outcome of an input whose worker died; `deliver` is given each final outcome
    once, several at a time, from other threads too. With `weights`, batches are about even in them,
    and smaller where inputs are heavy. After `stop` was requested, inputs that have no outcome yet
    get none.
    """

    count: int
    run: Callable[[int], Outcome | Sample]
    lost: Callable[[int, Death], Outcome]
    deliver: Callable[[Sequence[Outcome]], None]
    limits: Limits
    retry: RetryPolicy
    stop: Stop = field(default_factory=Stop)
    processing: Processing | None = None
    weights: NDArray[np.int64] | None = None
    _attempts: dict[int, int] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _retries: dict[int, _Retry] = field(default_factory=dict)
    # Inputs of batches that were not coped with, and the size of the batches they come in next.
    _divided: dict[int, int] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    _largest: int = 0
    _has_processed: bool = False
    _spared: frozenset[int] = frozenset()
    _taken: int = 0
    _stations: Sequence[Station] = ()
    _furthest: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _delivering: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._open.update(range(self.count))
        self._horizon = Horizon(self.count)
        self._desk = Desk(
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
            self._open.difference_update(range(boundary, self.count))
        return boundary

    def execute(self, *, batch_size: int, num_workers: int) -> None:
        """Execute all inputs; returns when each has its final outcome, or `stop` was requested.

        Raises WorkerError if workers bring forth no outcome any more, and what `deliver` raises.
        """
        self._waiting = sorted(self._open)
        self._largest = batch_size
        idle_passes = 0
        adopt_orphans()
        # What there is already, of which torch makes half a million objects, is looked through no
        # more for garbage: a worker would copy their memory by doing so.
        gc.freeze()
        try:
            while self._open and not self.stop.requested:
                work = self._next(num_workers)
                before = self._taken
                deaths = self._pass(work)
                if self.stop.requested:
                    break  # They may have been killed for that.
                for death in deaths:
                    self._blame(death)
                idle_passes = idle_passes + 1 if self._taken == before else 0
                if idle_passes and self.processing and self._largest > 1:
                    self._largest //= 2  # One by one, it shows who it is that ends workers.
                    idle_passes = 0
                if idle_passes > _MAX_IDLE_PASSES:
                    raise WorkerError(deaths[0].message if deaths else "its outcomes are lost")
                again = {*self._waiting, *work.indices}
                self._waiting = sorted(i for i in again if self._is_untold(i))
        finally:
            gc.unfreeze()
            adopt_orphans(False)

    def _next(self, num_workers: int) -> _Work:
        """Return what is to be done next: what was too much at once, what has not been, retries."""
        if self._divided:
            size = max(self._divided.values())
            indices = sorted(i for i in self._divided if self._divided[i] == size)
            for index in indices:
                del self._divided[index]
            return _Work(indices, min(size, self._largest), num_workers)
        if self._waiting:
            return _Work(self._waiting, self._largest, num_workers)
        indices, alone = self._due()
        return _Work(indices, 1, 1) if alone else _Work(indices, self._largest, num_workers)

    def _is_untold(self, index: int) -> bool:
        """Tell whether nothing has become of an input yet, and nothing is planned for it."""
        return index in self._open and index not in self._retries and index not in self._divided

    def _due(self) -> tuple[list[int], bool]:
        """Wait for the next retry; return what runs now, and whether it runs alone."""
        first = min(self._retries, key=lambda index: self._retries[index].due)
        self.stop.wait(self._retries[first].due - time.monotonic())
        alone = self._retries[first].alone
        now = time.monotonic()
        chosen = [first] if alone else self._due_together(now)
        for index in chosen:
            del self._retries[index]
        return chosen, alone

    def _due_together(self, now: float) -> list[int]:
        return [
            index for index, retry in self._retries.items() if retry.due <= now and not retry.alone
        ]

    def _pass(self, work: _Work) -> list[Death]:
        """Run one DataLoader until it is through, or a worker has died; return the deaths."""
        workers = max(1, min(work.num_workers, -(-len(work.indices) // work.batch_size)))
        before = frozenset(children(os.getpid()))
        stations = [Station() for _ in range(workers)]
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
        self, indices: Sequence[int], batch_size: int, stations: Sequence[Station]
    ) -> list[Death]:
        weights = None if self.processing else self.weights
        loads = np.ones(len(indices), np.int64) if weights is None else weights[list(indices)]
        oom_kills = kernel_oom_kills()
        drain = Drain()
        gate = Gate()
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
        return [
            self._autopsy(station, process.exitcode, watchdog.verdicts.get(number), oom_kills)
            for number, (station, process) in enumerate(zip(stations, processes, strict=True))
            if number in watchdog.verdicts
            or (station.occupied and station.occupied.index in self._open)
            or (process.exitcode and died)
        ]

    def _process(self, processing: Processing, batch: Batch, drain: Drain) -> None:
        """Process a batch; one with which this does not succeed comes again, in smaller ones."""
        if self.stop.requested or len(batch.indices) > self._largest:
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
        self._taken += 1
        if out_of_memory:
            # What comes next is as large: it, too, is loaded again in smaller batches.
            self._largest = half
            drain.set()
            free_device_memory()
            return
        self._divided |= dict.fromkeys(batch.indices, half)
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
        self._deliver(
            [
                final
                for index, outcome in arrived
                if (final := self._settle(index, outcome, again=outcome.kind in ("failed", "oom")))
            ]
        )

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        with self._delivering:  # Workers' outcomes arrive while batches are processed.
            self.deliver(outcomes)

    def _blame(self, death: Death) -> None:
        if death.index is None or death.index not in self._open:
            return
        again = death.kind in ("crashed", "oom")
        final = self._settle(death.index, self.lost(death.index, death), again=again, alone=True)
        if final:
            self._deliver([final])

    def _settle(
        self, index: int, outcome: Outcome, *, again: bool, alone: bool = False
    ) -> Outcome | None:
        """Return an input's final outcome; None if it has one, or is to be executed again."""
        if index not in self._open or index in self._retries:
            return None
        self._taken += 1
        attempts = self._attempts.get(index, 0) + 1
        if again and attempts <= self.retry.retries:
            self._attempts[index] = attempts
            due = time.monotonic() + self.retry.pause(attempts)
            self._retries[index] = _Retry(due, alone)
            return None
        self._open.discard(index)
        if outcome.attempts in (0, attempts):
            return outcome  # 0: there was no file to give to the step.
        return outcome._replace(attempts=attempts)

    def _autopsy(
        self, station: Station, exitcode: int | None, verdict: Verdict | None, oom_kills: int
    ) -> Death:
        occupied = station.occupied
        index = occupied.index if occupied else None
        seconds = time.monotonic() - occupied.started if occupied else 0.0
        log = station.log_tail()
        if verdict:
            error = {"timeout": "Timeout", "oom": "OutOfMemory"}[verdict.kind]
            return Death(verdict.index, verdict.kind, error, verdict.message, log, seconds)
        if exitcode == -signal.SIGKILL and kernel_oom_kills() > oom_kills:
            message = "the machine ran out of memory, and its kernel killed the worker"
            return Death(index, "oom", "OutOfMemory", message, log, seconds)
        if exitcode is not None and exitcode < 0:
            name = signal_name(-exitcode)
            return Death(index, "crashed", name, "its process died", log, seconds)
        error = f"exit code {exitcode}"
        return Death(index, "crashed", error, "its process ended", log, seconds)
