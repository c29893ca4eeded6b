"""Isolation: one outcome for each input, whatever the input does to its process."""

from batchmill.isolation.batches import Batch, BatchError, BrokenDeviceError, Processing, Sample
from batchmill.isolation.loader import Death, IsolatedRun, RetryPolicy
from batchmill.isolation.stop import Stop
from batchmill.isolation.watchdog import Limits

__all__ = [
    "Batch",
    "BatchError",
    "BrokenDeviceError",
    "Death",
    "IsolatedRun",
    "Limits",
    "Processing",
    "RetryPolicy",
    "Sample",
    "Stop",
]
