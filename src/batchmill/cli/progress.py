"""Show the progress of a run: a bar on a terminal, plain lines elsewhere."""

import threading
import time
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from batchmill.jobs.progress_line import (
    STARTING,
    Clock,
    following,
    poll,
    progress_line,
    time_left,
)
from batchmill.ledger.ledger import Ledger
from batchmill.runs.progress import RunWatcher

_LINE_SECONDS = 10.0


def showing_progress(
    ledger: Ledger, console: Console, *, quiet: bool
) -> AbstractContextManager[None]:
    """Show the progress of the run that the block starts, until the block ends."""
    if quiet:
        return nullcontext()
    follow = _follow_with_bar if console.is_terminal else _follow_with_lines
    return following(ledger, lambda watcher, stop: follow(watcher, console, stop))


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
        shown = bar.add_task(STARTING, total=None, rate="", left="")
        clock = Clock()
        for seen, _ in poll(watcher, stop):
            if seen:
                rate = clock.rate(seen.done)
                failed = f"[red]{seen.failed:,} failed[/red]" if seen.failed else "0 failed"
                bar.update(
                    shown,
                    description=f"inputs, {failed}",
                    total=seen.total,
                    completed=seen.done,
                    rate=f"{rate:.1f} inputs/s",
                    left=time_left(seen, rate),
                )


def _follow_with_lines(watcher: RunWatcher, console: Console, stop: threading.Event) -> None:
    clock = Clock()
    next_line = 0.0
    told = False
    for seen, ended in poll(watcher, stop):
        if seen is None:
            if not told and not ended:
                console.print(f"{STARTING} ...")
                told = True
            continue
        rate = clock.rate(seen.done)
        if ended or time.monotonic() >= next_line:
            console.print(progress_line(seen, rate, ended=ended))
            next_line = time.monotonic() + _LINE_SECONDS
