"""Isolation: each input gets one outcome, even if it kills its process."""

from batchmill.options.retry_policy import RetryPolicy
from batchmill.workers.batches import (
    Batch,
    BatchCallbacks,
    BatchError,
    BrokenDeviceError,
    Sample,
)
from batchmill.workers.executor import IsolatedExecutor
from batchmill.workers.stop import Stop
from batchmill.workers.watchdog import Limits
from batchmill.workers.worker_exit import WorkerExit

__all__ = [
    "Batch",
    "BatchCallbacks",
    "BatchError",
    "BrokenDeviceError",
    "IsolatedExecutor",
    "Limits",
    "RetryPolicy",
    "Sample",
    "Stop",
    "WorkerExit",
]
