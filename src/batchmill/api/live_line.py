"""Show the progress of a run in Python: one line in a notebook or on a terminal."""

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from batchmill.jobs.run_job import JobDisplay
from batchmill.planning.prepare import Prepared
from batchmill.runs.progress import STARTING, RunWatcher, following, poll, progress_line

_CLEAR_REST = "\x1b[K"


class LiveLine(JobDisplay):
    """Shows the progress in one line that is updated in place.

    A script whose messages go to a file or to another program shows nothing.
    """

    def follow(self, prepared: Prepared) -> AbstractContextManager[None]:
        """Show progress while the block runs."""
        line = _line() if len(prepared.plan.pending) else None
        if line is None:
            return nullcontext()
        return following(prepared.ledger, partial(_follow, line))


class _NotebookLine:
    """An output of the current cell. It is one output also in a notebook that a program runs."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._handle = display(_as_output(f"{STARTING} ..."), raw=True, display_id=True)

    def show(self, text: str) -> None:
        self._handle.update(_as_output(text), raw=True)

    def end(self) -> None:
        """The last text stays."""


class _TerminalLine:
    def __init__(self) -> None:
        self.show(f"{STARTING} ...")

    def show(self, text: str) -> None:
        print(f"\r{text}{_CLEAR_REST}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        print(file=sys.stderr, flush=True)


def _line() -> _NotebookLine | _TerminalLine | None:
    """Return a new line, or None if there is no place for one."""
    # If a kernel runs in this process, IPython has been imported.
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if getattr(shell, "kernel", None) is not None:
        return _NotebookLine(ipython.display.display)
    return _TerminalLine() if sys.stderr.isatty() else None


def _as_output(text: str) -> dict[str, str]:
    return {"text/plain": text}


def _follow(
    line: _NotebookLine | _TerminalLine, watcher: RunWatcher, stop: threading.Event
) -> None:
    for seen, rate, ended in poll(watcher, stop):
        if seen:
            line.show(progress_line(seen, rate, ended=ended))
    line.end()
