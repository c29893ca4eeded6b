"""A worker may die while it holds anything that the processes of a shard share."""

import fcntl
import gc
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.synchronize import SemLock

import pytest
from harness.live import wait_for

from batchmill.core.outcome import Outcome
from batchmill.runs.workers.isolated_executor import IsolatedExecutor
from batchmill.runs.workers.watchdog import Limits
from batchmill.runs.workers.worker import this_worker

COUNT = 12


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def shared(kind):
    """Return the objects of a type that a worker can reach."""
    return [found for found in gc.get_objects() if isinstance(found, kind)]


def hold_locks():
    """Acquire each lock and semaphore that a worker can reach."""
    for lock in shared(SemLock):
        lock.acquire(block=False)
    die()


def hold_files():
    """Lock each file in memory. The batches that workers share are such a file."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            fcntl.lockf(int(name), fcntl.LOCK_EX | fcntl.LOCK_NB)
    die()


def run_in(place, run):
    """Call a function in the main thread or in another one. Return what it returns."""
    if place == "main":
        return run()
    found = []
    thread = threading.Thread(target=lambda: found.append(run()), daemon=True)
    # A DataLoader of another test may have installed torch's handler. It raises in the main thread.
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        thread.start()
        wait_for(lambda: not thread.is_alive(), "the end of the shard", 60)
    finally:
        signal.signal(signal.SIGCHLD, handler)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["main", "other"])
@pytest.mark.parametrize("fault", [hold_locks, hold_files])
def test_the_other_inputs_get_their_outcomes(place, fault):
    def run(index):
        this_worker.channel.begin_step()
        if index == 3:
            fault()
        return Outcome(str(index), str(index), "ok", 1, 0.0, 0.0, "here")

    def execute():
        seen = []
        IsolatedExecutor(
            count=COUNT,
            run=run,
            lost=lambda index, death: Outcome(str(index), "", death.kind, 1, 0.0, 0.0, "here"),
            deliver=seen.extend,
            limits=Limits(timeout_seconds=5),
            retries=0,
        ).execute(batch_size=2, num_workers=2)
        return {outcome.input: outcome.kind for outcome in seen}

    kinds = run_in(place, execute)
    assert kinds == {str(index): "crashed" if index == 3 else "ok" for index in range(COUNT)}
