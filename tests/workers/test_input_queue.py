"""The order in which inputs are scheduled."""

from batchmill.outcome import Outcome
from batchmill.workers import input_queue
from batchmill.workers.input_queue import InputQueue

OK = Outcome("a", "a", "ok", 1, 0.0, 0.0, "here")


def test_retries_are_scheduled_in_order(monkeypatch):
    """In another order, 7, 3 and 9 would look like 7 to 9, and input 8 would run again."""
    now = [0.0]
    monkeypatch.setattr(input_queue.time, "monotonic", lambda: now[0])
    queue = InputQueue(10, 1, lambda seconds: now.append(now.pop() + seconds))
    queue.begin(3)
    work = queue.next(1)
    for index in (7, 3, 9):
        queue.resolve(index, OK._replace(kind="failed"), again=True)
    for index in {*range(10)} - {7, 3, 9}:
        queue.resolve(index, OK, again=False)
    queue.reschedule(work)
    now[0] += 100
    assert list(queue.next(1).indices) == [3, 7, 9]
