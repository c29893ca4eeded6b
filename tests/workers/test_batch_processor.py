"""The time limit of a batch covers its processing only."""

from types import SimpleNamespace

from batchmill.workers.batch_processor import BatchProcessor
from batchmill.workers.batches import Batch, BatchCallbacks
from batchmill.workers.control import DrainFlag, Stop
from batchmill.workers.input_queue import InputQueue
from batchmill.workers.watchdog import BatchMonitor


def test_outcomes_are_delivered_without_a_time_limit():
    """A slow delivery must not look like a slow batch: the process would be killed."""
    monitor, limited = BatchMonitor(timeout_seconds=60), {}

    def process(batch):
        limited["process"] = monitor.at is not None
        return [SimpleNamespace(kind="ok")] * len(batch.indices)

    def resolve(outcomes):
        limited["deliver"] = monitor.at is not None

    queue = InputQueue(2, 0, lambda seconds: None)
    queue.begin(2)
    BatchProcessor(
        callbacks=BatchCallbacks(collate=list, process=process, overdue=print, end=print),
        queue=queue,
        stop=Stop(),
        monitor=monitor,
        resolve=resolve,
    ).process(Batch([0, 1], [None, None]), DrainFlag())
    assert limited == {"process": True, "deliver": False}
