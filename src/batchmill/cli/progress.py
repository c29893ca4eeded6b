"""Show the progress of a run: a bar on a terminal, plain lines elsewhere."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from batchmill.errors import BatchmillError
from batchmill.ledger.ledger import Ledger
from batchmill.runs.progress import Progress as RunProgress
from batchmill.runs.progress import RunWatcher

_POLL_SECONDS = 0.5
_LINE_SECONDS = 10.0
_STARTING = "starting Prefect"


@contextmanager
def showing_progress(ledger: Ledger, console: Console, *, quiet: bool) -> Iterator[None]:
    """Show the progress of the run that the block starts, until the block ends."""
    if quiet:
        yield
        return
    stop = threading.Event()
    follow = _follow_with_bar if console.is_terminal else _follow_with_lines
    thread = threading.Thread(
        target=follow, args=(RunWatcher(ledger), console, stop), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _poll(watcher: RunWatcher, stop: threading.Event) -> Iterator[tuple[RunProgress | None, bool]]:
    """Yield the progress and whether the run has ended, twice a second."""
    ended = False
    while not ended:
        ended = stop.wait(_POLL_SECONDS)
        with suppress(BatchmillError):  # The run itself reports the error.
            yield watcher.poll(), ended


def _follow_with_bar(watcher: RunWatcher, console: Console, stop: threading.Event) -> None:
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
    )
    with bar:
        shown = bar.add_task(_STARTING, total=None, rate="", left="")
        clock = _Clock()
        for seen, _ in _poll(watcher, stop):
            if seen:
                rate = clock.rate(seen.done)
                failed = f"[red]{seen.failed:,} failed[/red]" if seen.failed else "0 failed"
                bar.update(
                    shown,
                    description=f"inputs, {failed}",
                    total=seen.total,
                    completed=seen.done,
                    rate=f"{rate:.1f} inputs/s",
                    left=_time_left(seen, rate),
                )


def _follow_with_lines(watcher: RunWatcher, console: Console, stop: threading.Event) -> None:
    clock = _Clock()
    next_line = 0.0
    told = False
    for seen, ended in _poll(watcher, stop):
        if seen is None:
            if not told and not ended:
                console.print(f"{_STARTING} ...")
                told = True
            continue
        rate = clock.rate(seen.done)
        if ended or time.monotonic() >= next_line:
            line = (
                f"{seen.done:,}/{seen.total:,} inputs, {seen.failed:,} failed, {rate:.1f} inputs/s"
            )
            left = "" if ended else _time_left(seen, rate)
            console.print(", ".join(filter(None, [line, left])))
            next_line = time.monotonic() + _LINE_SECONDS


def _time_left(seen: RunProgress, rate: float) -> str:
    if not rate or seen.done >= seen.total:
        return ""
    return f"{timedelta(seconds=round((seen.total - seen.done) / rate))} left"


class _Clock:
    """The rate since the first input was done, in inputs per second."""

    def __init__(self) -> None:
        self._begun: float | None = None

    def rate(self, done: int) -> float:
        now = time.monotonic()
        if self._begun is None or not done:
            self._begun = now
        elapsed = now - self._begun
        return done / elapsed if elapsed else 0.0
