"""Show the progress of a run in Python: one line in a notebook or on a terminal."""

import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from batchmill.api.jobs.run_job import JobDisplay
from batchmill.core.planning.prepare import Prepared
from batchmill.runs.progress import STARTING, RunWatcher, following, poll, progress_line

_CLEAR_REST = "\x1b[K"


class LiveLine(JobDisplay):
    """Shows the progress in one line that is updated in place.

    A script whose messages go to a file or to another program shows nothing.
    """

    def follow(self, prepared: Prepared) -> AbstractContextManager[None]:
        """Show progress while the block runs."""
        # If a kernel runs in this process, IPython has been imported.
        ipython: Any = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython else None
        has_kernel = getattr(shell, "kernel", None) is not None
        if not len(prepared.plan.pending) or not (has_kernel or sys.stderr.isatty()):
            return nullcontext()
        # It is one output of the current cell also in a notebook that a program runs.
        output = None
        if has_kernel:
            text = {"text/plain": ""}
            output = ipython.display.display(text, raw=True, display_id=True)
        _show(output, f"{STARTING} ...")
        return following(prepared.ledger, partial(_follow, output))


def _show(output: Any, text: str) -> None:
    """Replace the text of a cell's output, or without an output the line on the terminal."""
    if output is None:
        print(f"\r{text}{_CLEAR_REST}", end="", file=sys.stderr, flush=True)
    else:
        output.update({"text/plain": text}, raw=True)


def _follow(output: Any, watcher: RunWatcher, stop: threading.Event) -> None:
    for seen, rate, ended in poll(watcher, stop):
        if seen:
            _show(output, progress_line(seen, rate, ended=ended))
    if output is None:
        print(file=sys.stderr, flush=True)
