"""When a batch's outcomes are delivered, and what its time limit covers."""

import threading
from multiprocessing.reduction import ForkingPickler

import pytest

from batchmill.core.outcome import Outcome, UnstoredOutcome
from batchmill.runs.workers.batch_processor import BatchMonitor, BatchProcessor
from batchmill.runs.workers.inputs_in_progress import InputTable
from batchmill.runs.workers.loaded_batches import (
    Batch,
    BatchCallbacks,
    BatchError,
    BegunBatch,
    BrokenDeviceError,
)
from batchmill.runs.workers.stop_flags import SharedFlag, Stop

OK = Outcome("a", "a", "ok", 1, 0.0, 0.0, "here")
UNSTORED = UnstoredOutcome(1, [], lambda error: OK)
EMPTY = ForkingPickler.dumps(None)
FIRST, SECOND = Batch([0, 1], [None] * 2, EMPTY), Batch([2, 3], [None] * 2, EMPTY)


@pytest.fixture
def make_processor():
    """Return a function that makes a processor of batches with at most two inputs each.

    `process` returns the outcomes of a batch. With `begin`, batches have two phases.
    """

    def make(process, resolve, store=list, begin=None, end=print, **options):
        table = InputTable(8, 0)
        table.largest = 2
        table.give(0.0, 1)

        def process_at_once(batch):
            outcomes = process(batch)
            return BegunBatch(batch.indices, lambda: outcomes, is_in_flight=False)

        begin = begin or process_at_once
        return BatchProcessor(
            callbacks=BatchCallbacks(
                collate=list, begin=begin, store=store, overdue=print, end=end, **options
            ),
            table=table,
            stop=Stop(),
            monitor=BatchMonitor(print, 60),
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
        if batch.indices == SECOND.indices:
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


def given_again(processor):
    """Return the next pass."""
    return processor.table.give(0.0, 1)


class Device:
    """Two-phase batches. `events` has the beginnings and ends in their order.

    `fails` maps an event to the error that it raises.
    """

    def __init__(self, fails=()):
        self.events = []
        self.fails = dict(fails)

    def begin(self, batch):
        self._add("begin", batch.indices)
        return BegunBatch(batch.indices, lambda: self._end(batch.indices), is_in_flight=True)

    def _end(self, indices):
        self._add("end", indices)
        return [OK] * len(indices)

    def _add(self, kind, indices):
        event = f"{kind} {indices[0]}"
        self.events.append(event)
        if event in self.fails:
            raise self.fails[event]


@pytest.fixture
def play(make_processor):
    """Return a function that processes batches on a device.

    It returns the device's events, the inputs that were resolved, and the processor.
    """

    def call(device, *batches, **options):
        resolved = []
        deliver = lambda outcomes: resolved.extend(index for index, _ in outcomes)  # noqa: E731
        processor = make_processor(None, deliver, begin=device.begin, **options)
        for indices in batches:
            processor.process(Batch(indices, [None] * len(indices), EMPTY), SharedFlag())
        processor.finish()
        return device.events, resolved, processor

    return call


@pytest.mark.parametrize("pins", [False, True])
def test_the_next_batch_begins_before_the_results_of_a_batch_are_read(play, pins):
    events, resolved, _ = play(Device(), [0, 1], [2, 3], [4, 5], pins_memory=pins)
    assert events == ["begin 0", "begin 2", "end 0", "begin 4", "end 2", "end 4"]
    assert resolved == [0, 1, 2, 3, 4, 5]


def test_a_batch_of_one_is_alone_on_the_device(play):
    """Then an error belongs to its input, even if the device reports it late."""
    events, resolved, _ = play(Device(), [0, 1], [2], [3, 4])
    assert events == ["begin 0", "end 0", "begin 2", "end 2", "begin 3", "end 3"]
    assert resolved == [0, 1, 2, 3, 4]


def test_a_batch_that_fails_leaves_the_one_before_it_its_results(play):
    device = Device({"begin 2": BatchError("two")})
    events, resolved, processor = play(device, [0, 1], [2, 3], [4, 5])
    assert events == ["begin 0", "begin 2", "end 0", "begin 4", "end 4"]
    assert resolved == [0, 1, 4, 5]
    work = given_again(processor)
    assert (work.indices, work.batch_size) == ([2, 3], 1)


def test_a_batch_that_fails_at_its_end_leaves_the_one_after_it_its_results(play):
    _, resolved, processor = play(Device({"end 0": BatchError("two")}), [0, 1], [2, 3])
    assert resolved == [2, 3]
    assert given_again(processor).indices == [0, 1]


def test_two_batches_that_fill_the_device_are_processed_one_after_the_other(play):
    full = BatchError("two", out_of_memory=True)
    device = Device({"begin 2": full})
    events, resolved, processor = play(device, [0, 1], [2, 3], [4, 5], [6, 7])
    assert events == ["begin 0", "begin 2", "end 0", "begin 4", "end 4", "begin 6", "end 6"]
    assert resolved == [0, 1, 4, 5, 6, 7]
    # The batch is not divided: it may have enough memory when it is alone.
    work = given_again(processor)
    assert (work.indices, work.batch_size) == ([2, 3], 2)


def test_a_batch_that_alone_fills_the_device_is_divided(play):
    full = BatchError("two", out_of_memory=True)
    _, _, processor = play(Device({"begin 0": full}), [0, 1])
    assert processor.table.largest == 1


def test_a_broken_device_ends_the_process_and_is_not_used_again(play):
    ends = []
    device = Device({"begin 2": BrokenDeviceError("assert")})
    events, resolved, _ = play(device, [0, 1], [2, 3], end=ends.append)
    assert events == ["begin 0", "begin 2"]
    assert (resolved, ends) == ([], ["assert"])
