"""Determines how a worker ended, at which input, and with which kind of outcome."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from batchmill.outcome import Kind
from batchmill.workers.worker_channel import WorkerChannel


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended: its input (None if idle), the kind of outcome, and the reason.

    If it executed several inputs, `suspects` has all of them, instead of `index`.
    """

    index: int | None
    kind: Kind
    error: str
    message: str
    log: str = ""
    seconds: float = 0.0
    suspects: tuple[int, ...] = ()


def exit_of(
    channel: WorkerChannel,
    exitcode: int | None,
    killed: WorkerExit | None,
    killed_by_kernel: Callable[[], bool],
) -> WorkerExit:
    """Return how a worker ended.

    Args:
        channel: The worker's channel.
        exitcode: The exit code of the process. A negative code is a signal's number.
        killed: Why the watchdog killed the worker, without the log. None if it did not.
        killed_by_kernel: Returns True if the kernel has killed a process for lack of memory since
            the worker started. Called only if SIGKILL ended the worker.
    """
    suspects = tuple(channel.in_progress)
    if len(suspects) > 1:
        return WorkerExit(None, "crashed", "", "its worker ended", suspects=suspects)
    occupied = channel.occupied
    index = occupied.index if occupied else None
    seconds = time.monotonic() - occupied.started if occupied else 0.0
    log = channel.log_tail()
    if killed:
        return replace(killed, log=log)
    if exitcode == -signal.SIGKILL and killed_by_kernel():
        message = "the machine ran out of memory, and the kernel killed the worker"
        return WorkerExit(index, "oom", "OutOfMemory", message, log, seconds)
    if exitcode is not None and exitcode < 0:
        name = signal_name(-exitcode)
        return WorkerExit(index, "crashed", name, "the worker process died", log, seconds)
    error = f"exit code {exitcode}"
    return WorkerExit(index, "crashed", error, "the worker process ended", log, seconds)


def signal_name(number: int) -> str:
    """Return a signal's name, for example SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
