"""Follow a run in a thread, and describe its progress in one line of text."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import timedelta

from batchmill.errors import BatchmillError
from batchmill.ledger.ledger import Ledger
from batchmill.runs.progress import Progress, RunWatcher

STARTING = "starting Prefect"
_POLL_SECONDS = 0.5


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
