"""How a worker ended, at which input, and what kind of outcome that makes."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from batchmill.execution.isolation.watchdog import KillReason, signal_name
from batchmill.execution.isolation.worker_channel import WorkerChannel
from batchmill.outcome import Kind


@dataclass(frozen=True)
class WorkerExit:
    """How a worker ended: its input (None if it was idle), the kind of outcome, and the reason."""

    index: int | None
    kind: Kind
    error: str
    message: str
    log: str
    seconds: float


def death_of(
    station: WorkerChannel,
    exitcode: int | None,
    verdict: KillReason | None,
    killed_by_kernel: Callable[[], bool],
) -> WorkerExit:
    """Say how the worker at a station ended.

    `verdict` is the watchdog's, if that has killed it; `killed_by_kernel` tells whether the kernel
    has killed a process for want of memory meanwhile, and is asked of one that was killed.
    """
    occupied = station.occupied
    index = occupied.index if occupied else None
    seconds = time.monotonic() - occupied.started if occupied else 0.0
    log = station.log_tail()
    if verdict:
        error = {"timeout": "Timeout", "oom": "OutOfMemory"}[verdict.kind]
        return WorkerExit(verdict.index, verdict.kind, error, verdict.message, log, seconds)
    if exitcode == -signal.SIGKILL and killed_by_kernel():
        message = "the machine ran out of memory, and its kernel killed the worker"
        return WorkerExit(index, "oom", "OutOfMemory", message, log, seconds)
    if exitcode is not None and exitcode < 0:
        name = signal_name(-exitcode)
        return WorkerExit(index, "crashed", name, "its process died", log, seconds)
    error = f"exit code {exitcode}"
    return WorkerExit(index, "crashed", error, "its process ended", log, seconds)
