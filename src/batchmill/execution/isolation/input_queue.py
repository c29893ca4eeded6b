"""The inputs that have no final outcome yet: which of them come next, and which come again."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from batchmill.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often an input may be executed again for its own faults, and after how many seconds.

    The n-th retry waits `backoff_seconds` x 2^(n-1), at most `max_backoff_seconds`.
    """

    retries: int = 0
    backoff_seconds: float = 0.5
    max_backoff_seconds: float = 30.0

    def pause(self, attempts: int) -> float:
        """Return the seconds to wait after so many attempts."""
        return min(self.max_backoff_seconds, self.backoff_seconds * 2.0 ** (attempts - 1))


class LoaderPass(NamedTuple):
    """What one DataLoader is to do."""

    indices: Sequence[int]
    batch_size: int
    num_workers: int


class _Retry(NamedTuple):
    due: float
    alone: bool


class InputQueue:
    """Inputs without a final outcome, each by its index.

    `largest` is the size of the largest batch they come in; `taken` counts what became of inputs,
    be it final or not. `settle` and `leave_out` may be called by any thread, all else by one.
    """

    def __init__(self, count: int, retry: RetryPolicy, wait: Callable[[float], object]) -> None:
        self.largest = 0
        self.taken = 0
        self._retry = retry
        self._wait = wait
        self._open = set(range(count))
        self._attempts: dict[int, int] = {}
        self._retries: dict[int, _Retry] = {}
        # Inputs of batches that were not coped with, and the size of the batches they come in next.
        self._divided: dict[int, int] = {}
        self._waiting: list[int] = []

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, index: int) -> bool:
        return index in self._open

    def leave_out(self, indices: Iterable[int]) -> None:
        """Forget inputs that are to have no outcome."""
        self._open.difference_update(indices)

    def begin(self, batch_size: int) -> None:
        """Have all of them come, in batches of such a size."""
        self._waiting = sorted(self._open)
        self.largest = batch_size

    def next(self, num_workers: int) -> LoaderPass:
        """Return what is to be done next: what was too much at once, what has not been, retries."""
        if self._divided:
            size = max(self._divided.values())
            indices = sorted(i for i in self._divided if self._divided[i] == size)
            for index in indices:
                del self._divided[index]
            return LoaderPass(indices, min(size, self.largest), num_workers)
        if self._waiting:
            return LoaderPass(self._waiting, self.largest, num_workers)
        indices, alone = self._due()
        return (
            LoaderPass(indices, 1, 1) if alone else LoaderPass(indices, self.largest, num_workers)
        )

    def come_again(self, work: LoaderPass) -> None:
        """Have those of some work come again of which nothing has become."""
        again = {*self._waiting, *work.indices}
        self._waiting = sorted(i for i in again if self._is_untold(i))

    def divide(self, indices: Sequence[int], batch_size: int) -> None:
        """Have inputs come again that were too much at once, in smaller batches."""
        self.taken += 1
        self._divided |= dict.fromkeys(indices, batch_size)

    def bound_batches(self, batch_size: int) -> None:
        """Have all that comes from now on come in batches of such a size at most."""
        self.taken += 1
        self.largest = batch_size

    def settle(
        self, index: int, outcome: Outcome, *, again: bool, alone: bool = False
    ) -> Outcome | None:
        """Return an input's final outcome; None if it has one, or is to be executed again."""
        if index not in self._open or index in self._retries:
            return None
        self.taken += 1
        attempts = self._attempts.get(index, 0) + 1
        if again and attempts <= self._retry.retries:
            self._attempts[index] = attempts
            due = time.monotonic() + self._retry.pause(attempts)
            self._retries[index] = _Retry(due, alone)
            return None
        self._open.discard(index)
        if outcome.attempts in (0, attempts):
            return outcome  # 0: there was no file to give to the step.
        return outcome._replace(attempts=attempts)

    def _is_untold(self, index: int) -> bool:
        """Tell whether nothing has become of an input yet, and nothing is planned for it."""
        return index in self._open and index not in self._retries and index not in self._divided

    def _due(self) -> tuple[list[int], bool]:
        """Wait for the next retry; return what runs now, and whether it runs alone."""
        first = min(self._retries, key=lambda index: self._retries[index].due)
        self._wait(self._retries[first].due - time.monotonic())
        alone = self._retries[first].alone
        now = time.monotonic()
        chosen = [first] if alone else self._due_together(now)
        for index in chosen:
            del self._retries[index]
        return chosen, alone

    def _due_together(self, now: float) -> list[int]:
        return [
            index for index, retry in self._retries.items() if retry.due <= now and not retry.alone
        ]
