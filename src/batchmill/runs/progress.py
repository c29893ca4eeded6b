"""Follows the progress of a run by reading its ledger. Any process can do that."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from batchmill.core.failure_causes import SameCause
from batchmill.core.ledger.ledger import Ledger
from batchmill.core.outcome import one_line
from batchmill.core.planning.plan_file import PlanFile
from batchmill.errors import BatchmillError, LedgerError

STARTING = "starting Prefect"
KEPT_FAILURES = 100
_POLL_SECONDS = 0.5
# The columns that show the cause of a failure.
_OF_A_CAUSE = ("outcome", "error", "message", "host")
_COLUMNS = ("input", "outcome", "attempts", "error", "message", "host")


class Failure(NamedTuple):
    """An input that is not ok, and the reason."""

    input: str
    outcome: str
    attempts: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run.

    Attributes:
        total: The number of inputs to execute.
        done: The number of inputs that have an outcome.
        failed: The number of inputs whose outcome is not ok.
        failures: The first inputs that are not ok, in the order of their commits.
    """

    total: int
    done: int
    failed: int
    failures: tuple[Failure, ...]


class RunWatcher:
    """Follows a run. By default, follows the first run that begins after the watcher's creation.

    Args:
        ledger: The dataset's ledger.
        run: The number of the run. 0: the next one.
        columns: Further columns for `on_records`.
        on_records: Called with the new records of each part.

    Attributes:
        same: Compares the causes of the first failures.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: int = 0,
        columns: Sequence[str] = (),
        on_records: Callable[[pa.Table], object] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._columns = (*_COLUMNS, *columns)
        self._on_records = on_records
        self._before = 0 if run else max(ledger.runs(), default=0)
        self._run = run
        self._total = -1
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._failures: list[Failure] = []
        self.same = SameCause(0)

    def poll(self) -> Progress | None:
        """Read the outcomes committed since the last call, and return the progress.

        Returns None before the run begins.
        """
        if not self._run:
            self._run = next((run for run in self._ledger.runs() if run > self._before), 0)
        if self._run and self._total < 0:
            try:
                self._total = PlanFile(self._ledger, self._run).count_rows()
            except LedgerError:
                return None  # The run's folder exists, but its plan is not written yet.
        if not self._run:
            return None
        new = [name for name in self._ledger.part_names(self._run) if name not in self._seen]
        for name in new:
            records = self._ledger.read_part(name, self._columns)
            self._take(records)
            self._on_records(records)
            columns = (records[name].to_pylist() for name in _OF_A_CAUSE if self.same.limit)
            for outcome in zip(*columns, strict=True):
                self.same.add(*outcome)
        self._seen.update(new)
        if new and self._counts.total() > self._total:
            # Some inputs have two outcomes, for example one from a node that seemed lost. Read the
            # records again, because `outcomes` returns only the valid outcome of each input.
            self._counts.clear()
            self._failures.clear()
            self._take(self._ledger.outcomes(self._run).records(_COLUMNS))
        done = self._counts.total()
        return Progress(
            total=self._total,
            done=done,
            failed=done - self._counts["ok"],
            failures=tuple(self._failures),
        )

    def _take(self, records: pa.Table) -> None:
        self._counts.update(records["outcome"].to_pylist())
        failed = records.filter(pc.not_equal(records["outcome"], "ok"))
        for row in failed.slice(0, KEPT_FAILURES - len(self._failures)).to_pylist():
            reason = one_line(row["error"], row["message"])
            self._failures.append(Failure(row["input"], row["outcome"], row["attempts"], reason))


@contextmanager
def following(
    ledger: Ledger, follow: Callable[[RunWatcher, threading.Event], None]
) -> Iterator[None]:
    """Follow the run that the block starts, in a thread, until the block ends.

    Args:
        ledger: The ledger of the run's dataset.
        follow: Called in the thread with a watcher of the run, and an event that is set at the end.
    """
    stop = threading.Event()
    # A notebook shows what the thread displays below the cell of this context.
    thread = threading.Thread(
        target=copy_context().run,
        args=(follow, RunWatcher(ledger), stop),
        name="progress",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def poll(
    watcher: RunWatcher, stop: threading.Event
) -> Iterator[tuple[Progress | None, float, bool]]:
    """Yield the progress, the rate and whether the run has ended, twice a second.

    The rate is in inputs per second since the first input was done.
    """
    ended = False
    begun = 0.0
    while not ended:
        ended = stop.wait(_POLL_SECONDS)
        with suppress(BatchmillError):  # The run itself reports the error.
            seen, rate = watcher.poll(), 0.0
            if seen:
                now = time.monotonic()
                begun = begun if begun and seen.done else now
                rate = seen.done / (now - begun) if now > begun else 0.0
            yield seen, rate, ended


def progress_line(seen: Progress, rate: float, *, ended: bool) -> str:
    """Return the number of inputs, the rate and the time left, as one line.

    >>> progress_line(Progress(total=9, done=3, failed=1, failures=()), 2.0, ended=False)
    '3/9 inputs, 1 failed, 2.0 inputs/s, 0:00:03 left'
    """
    line = f"{seen.done:,}/{seen.total:,} inputs, {seen.failed:,} failed, {rate:.1f} inputs/s"
    left = "" if ended else time_left(seen, rate)
    return ", ".join(filter(None, [line, left]))


def time_left(seen: Progress, rate: float) -> str:
    """Return the estimated time until the end of the run. Empty if it is not known."""
    if not rate or seen.done >= seen.total:
        return ""
    return f"{timedelta(seconds=round((seen.total - seen.done) / rate))} left"
