"""Results of a worker arrive even if other workers die."""

import os
import queue
import threading

import pytest

from batchmill.workers.loader_context import WorkerContext
from batchmill.workers.processes import ChildProcess


@pytest.fixture
def begin():
    """Return a function that forks a worker for each function, and returns the queue of results."""
    started = []

    def fork(*functions, idle_work=None):
        context = WorkerContext(len(functions), idle_work)
        results = context.Queue()

        def work(number, function):
            results.enter(number)
            function(results)

        for number, function in enumerate(functions):
            context.Process(target=work, args=(number, function)).start()
        handles = [ChildProcess(process.pid) for process in context.workers]
        results.watch(handles)
        started.append((context, handles))
        return results

    yield fork
    for context, handles in started:
        for process, handle in zip(context.workers, handles, strict=True):
            handle.kill_tree()
            handle.close()
            process.join()
        context.results.end()


def wait_forever():
    threading.Event().wait()


def received(results, count):
    """Return this number of results, and how often a worker has ended before."""
    found, ends = [], 0
    while len(found) < count:
        try:
            found.append(results.get(timeout=60))
        except queue.Empty:
            ends += 1
    return found, ends


def test_a_worker_that_dies_within_a_result_stops_no_other(begin):
    def die(results):
        results.put("a" * 10)
        results._sender.shutdown()
        results._pipe.write(b"\x10")
        results._pipe.flush()
        os._exit(1)

    def send(results):
        results.put("b" * 5_000_000)
        wait_forever()

    found, _ = received(begin(die, send), 2)
    assert sorted(map(len, found)) == [10, 5_000_000]


def test_the_end_of_a_worker_is_noticed_once(begin):
    go, back = os.pipe()

    def send(results):
        os.read(go, 1)
        results.put("late")
        wait_forever()

    results = begin(lambda _: os._exit(3), send)
    with pytest.raises(queue.Empty):
        results.get(timeout=3600)
    os.write(back, b".")
    assert results.get(timeout=3600) == "late"
    os.close(go)
    os.close(back)


def test_nothing_arrives_in_time(begin):
    results = begin(lambda _: wait_forever())
    with pytest.raises(queue.Empty):
        results.get(timeout=0.01)


def test_idle_work_is_done_while_nothing_arrives(begin):
    go, back = os.pipe()

    class Work:
        done = 0

        @property
        def is_waiting(self):
            return self.done < 3

        def advance(self):
            self.done += 1
            if self.done == 3:
                os.write(back, b".")

    def send(results):
        os.read(go, 1)
        results.put("after the work")
        wait_forever()

    work = Work()
    assert begin(send, idle_work=work).get(timeout=3600) == "after the work"
    assert work.done == 3
    os.close(go)
    os.close(back)
