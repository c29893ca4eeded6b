"""Drives torch's DataLoader so that each input has one outcome, whatever the input does.

A DataLoader alone loses everything when a worker dies, and never names the file. Here a worker
hands over each outcome as soon as it has it, and says in its slot which input it is at. When a
worker dies, the others finish what they are at, the slot of the dead one tells who is to blame, and
a new DataLoader takes the rest. One to blame runs again alone, as often as its retries allow.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from batchmill.errors import WorkerError
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
from batchmill.isolation.watchdog import Limits, Verdict, Watchdog, signal_name
from batchmill.isolation.worker import Drain, Gate, GuardedInputs, Horizon, begin_worker
from batchmill.outcome import Kind, Outcome

_POLL_SECONDS = 0.02
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


class _Retry(NamedTuple):
    due: float
    alone: bool


@dataclass
class IsolatedRun:
    """The execution of some inputs, each by its index, in DataLoader workers.

    `run` executes one input in a worker and never raises; `lost` makes the outcome of one whose
    worker died; `deliver` is given each final outcome once, several at a time, from other threads
    too. After `stop` was requested, inputs that have no outcome yet get none.
    """

    count: int
    run: Callable[[int], Outcome]
    lost: Callable[[int, Death], Outcome]
    deliver: Callable[[Sequence[Outcome]], None]
    limits: Limits
    retry: RetryPolicy
    stop: Stop = field(default_factory=Stop)
    _attempts: dict[int, int] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _retries: dict[int, _Retry] = field(default_factory=dict)
    _taken: int = 0
    _stations: Sequence[Station] = ()
    _furthest: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._open.update(range(self.count))
        self._horizon = Horizon(self.count)

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
        together = sorted(self._open)
        idle_passes = 0
        adopt_orphans()
        try:
            while self._open and not self.stop.requested:
                indices, alone = (together, False) if together else self._due()
                before = self._taken
                deaths = self._pass(
                    indices, 1 if alone else batch_size, 1 if alone else num_workers
                )
                if self.stop.requested:
                    break  # They may have been killed for that.
                for death in deaths:
                    self._blame(death)
                idle_passes = idle_passes + 1 if self._taken == before else 0
                if idle_passes > _MAX_IDLE_PASSES:
                    raise WorkerError(deaths[0].message if deaths else "its outcomes are lost")
                together = [i for i in indices if i in self._open and i not in self._retries]
        finally:
            adopt_orphans(False)

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

    def _pass(self, indices: Sequence[int], batch_size: int, num_workers: int) -> list[Death]:
        """Run one DataLoader until it is through, or a worker has died; return the deaths."""
        workers = max(1, min(num_workers, -(-len(indices) // batch_size)))
        before = frozenset(children(os.getpid()))
        stations = [Station() for _ in range(workers)]
        self._stations = stations
        try:
            return self._drive(indices, batch_size, stations)
        finally:
            with self._lock:
                self._furthest = max(self._furthest, *(station.last for station in stations))
                self._stations = ()
            kill_descendants(os.getpid(), spare=before)
            for pid in set(children(os.getpid())) - before:
                reap(pid)
            for station in stations:
                station.close()

    def _drive(
        self, indices: Sequence[int], batch_size: int, stations: Sequence[Station]
    ) -> list[Death]:
        oom_kills = kernel_oom_kills()
        drain = Drain()
        gate = Gate()
        watchdog = Watchdog(stations, self.limits, drain, self.stop, self._receive)
        iterator = _iterate(
            GuardedInputs(indices=indices, run=self.run, drain=drain, horizon=self._horizon),
            batch_size,
            len(stations),
            partial(begin_worker, stations=stations, gate=gate, parent=os.getpid()),
        )
        processes = list(iterator._workers)
        watchdog.start()
        died = False
        try:
            gate.open(len(stations))
            for _ in iterator:
                pass
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            died = True
        except BaseException:  # Cancelled: what is not finished will run another time.
            for process in processes:
                kill_tree(process.pid)
            raise
        finally:
            with _deaths_are_no_errors():
                drain.set()
                _wait_until_idle(stations, processes)
                if died:
                    iterator._shutdown_workers()
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

    def _receive(self, arrived: Sequence[tuple[int, Outcome]]) -> None:
        """Take outcomes from workers; called by the watchdog's thread."""
        self.deliver(
            [
                final
                for index, outcome in arrived
                if (final := self._settle(index, outcome, again=outcome.kind == "failed"))
            ]
        )

    def _blame(self, death: Death) -> None:
        if death.index is None or death.index not in self._open:
            return
        again = death.kind in ("crashed", "oom")
        final = self._settle(death.index, self.lost(death.index, death), again=again, alone=True)
        if final:
            self.deliver([final])

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


def _iterate(
    inputs: GuardedInputs, batch_size: int, num_workers: int, begin: Callable[[int], None]
) -> Any:
    """Fork the workers of a DataLoader, and return its iterator."""
    with warnings.catch_warnings():
        # More workers than cores: the user's choice, for steps that wait.
        warnings.simplefilter("ignore", UserWarning)
        return iter(
            DataLoader(
                inputs,  # type: ignore[arg-type]  # Any map-style object will do; torch says so.
                batch_size=batch_size,
                num_workers=num_workers,
                collate_fn=_as_it_is,
                # One slow input must not hold up the batches behind it.
                in_order=False,
                # Measured in a Ray worker: first item after 0.1 s, against 1 to 2 s otherwise.
                multiprocessing_context="fork",
                worker_init_fn=begin,
            )
        )


def _as_it_is(batch: list[int]) -> list[int]:
    return batch


def _wait_until_idle(stations: Sequence[Station], processes: Sequence[Any]) -> None:
    """Wait until no living worker is at an input; the watchdog sees to it that this ends."""
    while any(
        station.occupied and process.is_alive()
        for station, process in zip(stations, processes, strict=True)
    ):
        time.sleep(_POLL_SECONDS)


@contextmanager
def _deaths_are_no_errors() -> Iterator[None]:
    """Keep torch from raising at whatever line is reached when another worker dies.

    Its handler of SIGCHLD raises RuntimeError in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # There, torch has no handler.
        return
    previous = signal.getsignal(signal.SIGCHLD)
    while signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
        with suppress(RuntimeError):  # It may come in this very line.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)
