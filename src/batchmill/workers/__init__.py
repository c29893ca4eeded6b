"""Isolation: each input gets one outcome, even if it kills its process."""

from batchmill.workers.control import Stop
from batchmill.workers.executor import IsolatedExecutor
from batchmill.workers.loaded_batches import (
    Batch,
    BatchCallbacks,
    BatchError,
    BrokenDeviceError,
    Sample,
)
from batchmill.workers.watchdog import Limits
from batchmill.workers.worker_exit import WorkerExit

__all__ = [
    "Batch",
    "BatchCallbacks",
    "BatchError",
    "BrokenDeviceError",
    "IsolatedExecutor",
    "Limits",
    "Sample",
    "Stop",
    "WorkerExit",
]
