"""Isolation: one outcome for each input, whatever the input does to its process."""

from batchmill.isolation.batches import Batch, BatchError, BrokenDeviceError, Processing, Sample
from batchmill.isolation.deaths import Death
from batchmill.isolation.loader import IsolatedRun
from batchmill.isolation.pending import RetryPolicy
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
