"""Isolation: each input gets one outcome, even if it kills its process."""

from batchmill.execution.isolation.batches import (
    Batch,
    BatchCallbacks,
    BatchError,
    BrokenDeviceError,
    Sample,
)
from batchmill.execution.isolation.executor import IsolatedExecutor
from batchmill.execution.isolation.retry_policy import RetryPolicy
from batchmill.execution.isolation.stop import Stop
from batchmill.execution.isolation.watchdog import Limits
from batchmill.execution.isolation.worker_exit import WorkerExit

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
