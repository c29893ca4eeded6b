"""Lets the workers of a shard begin inputs: in order, retries first, and within `--rate`."""

import time
from collections import deque
from collections.abc import Sequence
from threading import Lock

from batchmill.runs.workers.control import Pace, SharedTurns
from batchmill.runs.workers.input_table import InputTable


class Feed:
    """The inputs of the current pass that no worker has taken. Any thread may call its methods.

    `turns` are those that workers may take.

    Args:
        table: The inputs of the shard.
        pace_seconds: The shortest time between the begin of two attempts. 0: no limit.
    """

    def __init__(self, table: InputTable, pace_seconds: float) -> None:
        self.turns = SharedTurns(len(table))
        self._table = table
        self._pace = Pace(pace_seconds, time.monotonic())
        self._waiting: deque[int] = deque()
        self._lock = Lock()

    def begin(self, indices: Sequence[int]) -> None:
        """Begin a pass with these inputs."""
        with self._lock:
            self._recall()
            self._waiting.extend(indices)

    def advance(self) -> bool:
        """Let workers begin the inputs whose turn has come. Return False if the pass is over."""
        with self._lock:
            now = time.monotonic()
            self._waiting.extendleft(reversed(self._table.give_due(now)))
            ready = []
            while self._waiting and (turn := self._pace.next_turn(now)) is not None:
                ready.append((self._waiting.popleft(), turn))
            self.turns.put(ready, first=self.turns.left > 0)  # If others wait, these are retries.
            return not self._table.pass_is_over(now)

    def shorten(self) -> int:
        """Leave out the last inputs that no worker has taken. Return the first of them."""
        with self._lock:
            waiting = self._recall()
            boundary = self._table.leave_out(waiting)
            self._waiting.extend(index for index in waiting if index < boundary)
        return boundary

    def _recall(self) -> list[int]:
        """Take all inputs back that no worker has taken."""
        found = [index for index, _ in self.turns.take(self.turns.left)]
        found += self._waiting
        self._waiting.clear()
        return found
