"""Divides inputs into batches, and schedules those without a final outcome and their retries."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchmill.outcome import Outcome

# No batch is heavier than this fraction of a worker's load, unless a single input is.
_PARTS = 32
# The same for the first batch if files are moved. Later batches are smaller.
_FIRST_PARTS = 4
# The n-th retry of an input waits 2^(n-1) times the first pause, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


def pause_before_retry(attempts: int) -> float:
    """Return the seconds to wait after a number of failed attempts."""
    return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (attempts - 1)))


class LoaderPass(NamedTuple):
    """The work of one DataLoader. If it is `alone`, its inputs run one at a time."""

    indices: Sequence[int]
    batch_size: int
    num_workers: int
    alone: bool = False


class _Retry(NamedTuple):
    due: float
    alone: bool


class InputQueue:
    """The inputs without a final outcome, each identified by its index.

    `largest` is the size of the largest batch. `progress` counts outcomes, final or not, and
    divided batches. Any thread may call `resolve` and `leave_out`. Only one thread may call the
    other methods.
    """

    def __init__(self, count: int, retries: int, wait: Callable[[float], object]) -> None:
        self.largest = 0
        self.progress = 0
        self._retries_allowed = retries
        self._wait = wait
        self._open = set(range(count))
        self._attempts: dict[int, int] = {}
        self._retries: dict[int, _Retry] = {}
        # Inputs of batches that failed as a whole, with the size of their next batch.
        self._divided: dict[int, int] = {}
        self._waiting: list[int] = []
        # Inputs that were in progress when another one, or one of them, ended their worker.
        self._suspects: set[int] = set()
        self._interrupted: Counter[int] = Counter()
        # Retries that were added to the current pass.
        self._added: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, index: int) -> bool:
        return index in self._open

    def leave_out(self, indices: Iterable[int]) -> None:
        """Remove inputs. They get no outcome."""
        self._open.difference_update(indices)

    def begin(self, batch_size: int) -> None:
        """Schedule all inputs, in batches of this size."""
        self._waiting = sorted(self._open)
        self.largest = batch_size

    def next(self, num_workers: int) -> LoaderPass:
        """Return the next work: suspects and divided batches, then new inputs, then retries.

        Waits until a retry is due if there is no other work.
        """
        if self._suspects:
            suspects = sorted(self._suspects & self._open)
            self._suspects.clear()
            return LoaderPass(suspects, self.largest, 1, alone=True)
        if self._divided:
            size = max(self._divided.values())
            indices = sorted(i for i in self._divided if self._divided[i] == size)
            for index in indices:
                del self._divided[index]
            return LoaderPass(indices, min(size, self.largest), num_workers)
        if self._waiting:
            return LoaderPass(self._waiting, self.largest, num_workers)
        first = min(self._retries, key=lambda index: self._retries[index].due)
        self._wait(self._retries[first].due - time.monotonic())
        if self._retries[first].alone:
            del self._retries[first]
            return LoaderPass([first], 1, 1, alone=True)
        return LoaderPass(self._take_due(), self.largest, num_workers)

    def add_due(self) -> list[int]:
        """Return the inputs whose retry is due now, to run them in the current pass."""
        due = self._take_due()
        self._added.update(due)
        return due

    def reschedule(self, work: LoaderPass) -> None:
        """Schedule a pass's inputs again, if they have no outcome and are not scheduled yet."""
        if work.alone:
            self._suspects.update(filter(self._is_unscheduled, work.indices))
        again = {*self._waiting, *work.indices, *self._added}
        self._added.clear()
        self._waiting = sorted(i for i in again if self._is_unscheduled(i))

    def separate(self, indices: Iterable[int]) -> None:
        """Schedule inputs one at a time, because one of them has ended their worker."""
        self.progress += 1
        suspects = [index for index in indices if index in self._open]
        self._interrupted.update(suspects)
        self._suspects.update(suspects)

    def divide(self, indices: Sequence[int], batch_size: int) -> None:
        """Schedule the inputs of a failed batch again, in smaller batches."""
        self.progress += 1
        self._divided |= dict.fromkeys(indices, batch_size)

    def limit_batches(self, batch_size: int) -> None:
        """Limit the size of all batches from now on."""
        self.progress += 1
        self.largest = batch_size

    def resolve(
        self, index: int, outcome: Outcome, *, again: bool, alone: bool = False
    ) -> Outcome | None:
        """Record the outcome of one attempt at an input.

        Args:
            index: The input.
            outcome: The outcome of this attempt.
            again: True if the input may be retried, within its retries.
            alone: True if the retry must run without other inputs.

        Returns:
            The input's final outcome; None if it already has one, or will be retried.
        """
        if index not in self._open or index in self._retries:
            return None
        self.progress += 1
        attempts = self._attempts.get(index, 0) + max(1, outcome.attempts)
        if again and attempts <= self._retries_allowed:
            self._attempts[index] = attempts
            pause = max(pause_before_retry(attempts), outcome.retry_after)
            self._retries[index] = _Retry(time.monotonic() + pause, alone)
            return None
        self._open.discard(index)
        executions = attempts + self._interrupted[index]
        if outcome.attempts in (0, executions):
            return outcome  # 0 means that the input is missing, and the step was not called.
        return outcome._replace(attempts=executions)

    def _is_unscheduled(self, index: int) -> bool:
        """Return whether an input has no outcome, and is in no set of scheduled inputs."""
        scheduled = (self._retries, self._divided, self._suspects)
        return index in self._open and not any(index in one for one in scheduled)

    def _take_due(self) -> list[int]:
        """Remove and return the due retries in order, except those that must run alone."""
        now = time.monotonic()
        # A copy, because another thread may add a retry.
        retries = list(self._retries.items())
        due = sorted(index for index, retry in retries if retry.due <= now and not retry.alone)
        for index in due:
            del self._retries[index]
        return due


def make_batches(
    weights: NDArray[np.int64],
    batch_size: int,
    workers: int,
    *,
    even: bool = True,
    shrinking: bool = False,
) -> list[range]:
    """Divide inputs into batches.

    Args:
        weights: The weight of each input.
        batch_size: The maximum number of inputs per batch.
        workers: The number of workers that share the batches.
        even: True to make batches of heavy inputs smaller.
        shrinking: True to begin with large batches. A worker fetches at most one batch ahead, but
            small batches at the end let all workers end at the same time.

    Returns:
        The range of inputs of each batch.

    >>> make_batches(np.array([50, 30, 10, 5, 5] + [1] * 60), batch_size=20, workers=1)[:4]
    [range(0, 1), range(1, 2), range(2, 3), range(3, 4)]
    """
    left = float(weights.sum()) / max(1, workers)
    lightest = left / _PARTS if even else np.inf
    heaviest = max(lightest, left / _FIRST_PARTS) if shrinking else lightest
    batches = []
    start, load = 0, 0
    for index, weight in enumerate(weights.tolist()):
        if index > start and (index - start == batch_size or load + weight > heaviest):
            batches.append(range(start, index))
            left -= load / max(1, workers)
            heaviest = max(lightest, left / _FIRST_PARTS) if shrinking else lightest
            start, load = index, 0
        load += weight
    return [*batches, range(start, len(weights))] if len(weights) else []
