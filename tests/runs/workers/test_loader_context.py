"""Results of a worker arrive even if other workers die."""

import os
import queue
import threading

import pytest
from harness.live import wait_for
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from batchmill.runs.workers.loader_context import WorkerContext
from batchmill.runs.workers.private_api import start_workers
from batchmill.runs.workers.processes import kill_tree

LARGE = 5 * 2**20  # More than a ring of results.


class Functions(IterableDataset):
    """The items of each worker come from a function of its own."""

    def __init__(self, functions, results):
        self.functions, self.results = functions, results

    def __iter__(self):
        return self.functions[get_worker_info().id](self.results)


@pytest.fixture
def begin():
    """Return a function that starts a worker for each function, and returns context and items."""
    started = []

    def start(*functions, processor=None):
        context = WorkerContext(len(functions), processor)
        started.append(context)
        loader = DataLoader(
            Functions(functions, context.results),
            batch_size=None,
            num_workers=len(functions),
            in_order=False,
            multiprocessing_context=context,
        )
        return context, start_workers(loader)

    yield start
    for context in started:
        for process in context.workers:
            kill_tree(process.pid)
            process.join()
        context.results.release()


def wait_forever(_):
    threading.Event().wait()


def test_a_worker_that_dies_within_a_result_stops_no_other(begin):
    go, back = os.pipe()

    def die(results):
        yield "a" * LARGE
        # Its ring is full, so a part of the item is left.
        wait_for(lambda: results._rings[0]._counters[0] > 0, "the first bytes")
        os._exit(1)

    def send(_):
        os.read(go, 1)
        yield "b" * LARGE
        yield "c"

    context, items = begin(die, send)
    context.workers[0].join()
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        next(items)
    assert isinstance(caught.value.__cause__, queue.Empty)
    os.write(back, b".")
    assert [*map(len, items)] == [LARGE, 1]
    os.close(go)
    os.close(back)


def test_nothing_arrives_in_time(begin):
    context, _ = begin(wait_forever)
    with pytest.raises(queue.Empty):
        context.results.get(timeout=0.01)


def test_batches_continue_while_nothing_arrives(begin):
    go, back = os.pipe()

    class Processor:
        done = 0

        @property
        def is_waiting(self):
            return self.done < 3

        def advance(self):
            self.done += 1
            if self.done == 3:
                os.write(back, b".")

    def send(_):
        os.read(go, 1)
        yield "after the batches"

    processor = Processor()
    assert list(begin(send, processor=processor)[1]) == ["after the batches"]
    assert processor.done == 3
    os.close(go)
    os.close(back)
