"""When a batch's outcomes are delivered, and what its time limit covers."""

import threading

import pytest

from batchmill.outcome import Outcome, UnstoredOutcome
from batchmill.workers.batch_processor import BatchProcessor
from batchmill.workers.batches import Batch, BatchCallbacks
from batchmill.workers.control import SharedFlag, Stop
from batchmill.workers.input_queue import InputQueue
from batchmill.workers.watchdog import BatchMonitor

OK = Outcome("a", "a", "ok", 1, 0.0, 0.0, "here")
UNSTORED = UnstoredOutcome(1, [], lambda error: OK)
FIRST, SECOND = Batch([0, 1], [None, None]), Batch([2, 3], [None, None])


@pytest.fixture
def make_processor():
    """Return a function that makes a processor of two batches with two inputs each."""

    def make(process, resolve, store=list):
        queue = InputQueue(4, 0, lambda seconds: None)
        queue.begin(2)
        return BatchProcessor(
            callbacks=BatchCallbacks(
                collate=list, process=process, store=store, overdue=print, end=print
            ),
            queue=queue,
            stop=Stop(),
            monitor=BatchMonitor(timeout_seconds=60),
            resolve=resolve,
        )

    return make


def test_outcomes_are_delivered_without_a_time_limit(make_processor):
    """A slow delivery must not look like a slow batch: the process would be killed."""
    limited = {}

    def process(batch):
        limited["process"] = processor.monitor.at is not None
        return [OK] * len(batch.indices)

    def resolve(outcomes):
        limited["deliver"] = processor.monitor.at is not None

    processor = make_processor(process, resolve)
    processor.process(FIRST, SharedFlag())
    assert limited == {"process": True, "deliver": False}


def test_files_are_stored_while_the_next_batch_is_processed(make_processor):
    second_begun, resolved = threading.Event(), []

    def process(batch):
        if batch is SECOND:
            assert not resolved
            second_begun.set()
        return [UNSTORED] * len(batch.indices)

    def store(outcomes):
        assert second_begun.wait(30)
        return [outcome.finish(None) for outcome in outcomes]

    processor = make_processor(process, lambda outcomes: resolved.extend(outcomes), store)
    for batch in (FIRST, SECOND):
        processor.process(batch, SharedFlag())
    processor.finish()
    assert resolved == [(index, OK) for index in range(4)]


def test_an_error_while_files_are_stored_ends_the_shard(make_processor):
    def fail(outcomes):
        raise OSError("no space")

    processor = make_processor(lambda batch: [UNSTORED] * 2, list, fail)
    processor.process(FIRST, SharedFlag())
    with pytest.raises(OSError, match="no space"):
        processor.process(SECOND, SharedFlag())
