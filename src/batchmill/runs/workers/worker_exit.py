"""Describes how a worker ended."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from batchmill.core.outcome import Kind


@dataclass(frozen=True)
class WorkerExit:
    """Why a worker ended: the kind of outcome, the error and the message for the input at fault.

    Attributes:
        log: The end of what the step printed.
        seconds: How long the input was executed.
        cause: The input that exceeded a limit. None if that is unknown.
        begun: All inputs whose step had begun and not ended.
    """

    kind: Kind
    error: str
    message: str
    log: str = ""
    seconds: float = 0.0
    cause: int | None = None
    begun: tuple[int, ...] = ()


def exit_of(exitcode: int | None, killed_by_kernel: Callable[[], bool]) -> WorkerExit:
    """Return how a worker ended that the watchdog did not kill.

    Args:
        exitcode: The exit code of the process. A negative code is a signal's number.
        killed_by_kernel: Returns True if the kernel has killed a process for lack of memory since
            the worker started. Called only if SIGKILL ended the worker.
    """
    if exitcode == -signal.SIGKILL and killed_by_kernel():
        message = "the machine ran out of memory, and the kernel killed the worker"
        return WorkerExit("oom", "OutOfMemory", message)
    if exitcode is not None and exitcode < 0:
        return WorkerExit("crashed", signal_name(-exitcode), "the worker process died")
    return WorkerExit("crashed", f"exit code {exitcode}", "the worker process ended")


def signal_name(number: int) -> str:
    """Return a signal's name, for example SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
