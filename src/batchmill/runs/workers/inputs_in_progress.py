"""The owner of the inputs in progress: one table has the state of each input of a shard.

Workers report events, and this table decides whether an input runs again, when, and beside which
others. It also decides which input ended a worker. It has no clock and no process, so its rules are
tested by themselves. Times are seconds of one monotonic clock.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from batchmill.core.outcome import LONGEST_RETRY_AFTER, RETRIED_KINDS, Outcome

# The n-th retry of an input waits 2^(n-1) times the first pause, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
# A pass waits this long for retries.
_SOON_SECONDS = 5.0
# The states of an input. A worker may begin a given input at any moment.
_WAITING, _GIVEN, _FINAL = range(3)
_Method = TypeVar("_Method", bound=Callable[..., Any])


class LoaderPass(NamedTuple):
    """The work of one DataLoader. If it is `alone`, its inputs run one at a time."""

    indices: Sequence[int]
    batch_size: int
    num_workers: int
    alone: bool = False


@dataclass(slots=True)
class History:
    """The attempts at an input that was not simply executed once.

    Attributes:
        faults: The attempts that failed by its own fault. They use its retries.
        suspected: The attempts whose worker ended with several inputs in progress. If the input
            then ends a worker alone, it was at fault in these, too.
        interrupted: The attempts that ended with their worker, because of another input.
        due: When its next attempt may begin.
        alone: True if it runs without other inputs from now on.
        batch: The size of its next batch after its last batch failed; 0 for any size.
    """

    faults: int = 0
    suspected: int = 0
    interrupted: int = 0
    due: float = 0.0
    alone: bool = False
    batch: int = 0

    @property
    def attempts(self) -> int:
        """How often the input was executed."""
        return self.faults + self.suspected + self.interrupted

    def as_tuple(self, later: float) -> tuple[Any, ...]:
        """Return the fields in their order, with `due` by a clock that is `later` by seconds."""
        due = self.due and self.due + later
        return (self.faults, self.suspected, self.interrupted, due, self.alone, self.batch)


def _locked(method: _Method) -> _Method:
    """Let one thread at a time call the methods of an object."""

    @wraps(method)
    def call(self: "InputTable", *args: Any, **named: Any) -> Any:
        with self._lock:
            return method(self, *args, **named)

    return cast("_Method", call)


class InputTable:
    """The inputs of a shard, each identified by its index. Any thread may call any method.

    Args:
        count: The number of inputs.
        retries: How often an input is executed again after its own fault.
        retried: The kinds of outcomes after which an input is executed again.

    Attributes:
        largest: The size of the largest batch from now on.
        progress: Grows with each attempt that ended, each worker that an input ended, and each
            batch that was divided.
    """

    def __init__(self, count: int, retries: int, retried: Collection[str] = RETRIED_KINDS) -> None:
        self.largest = 1
        self.progress = 0
        self._retries = retries
        self._retried = retried
        self._states = bytearray(count)
        self._open = count
        self._given = 0
        self._is_alone = False  # True if the current pass runs its inputs one at a time.
        self._histories: dict[int, History] = {}
        self._delayed: dict[int, float] = {}  # When each waiting input with a pause is due.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Return the number of inputs without a final outcome."""
        return self._open

    @_locked
    def resume(self, histories: Mapping[int, History]) -> None:
        """Take over the histories of inputs from an earlier attempt at the shard."""
        self._histories.update(histories)
        self._delayed.update((index, seen.due) for index, seen in histories.items() if seen.due)

    @_locked
    def unfinished(self) -> dict[int, History]:
        """Return the histories of the inputs without a final outcome, for `resume`."""
        known = self._histories.items()
        return {i: replace(seen) for i, seen in known if self._states[i] != _FINAL}

    @_locked
    def due_in(self, now: float) -> float:
        """Return the seconds until an input may be given; 0 if one may be given now."""
        if self._open - self._given > len(self._delayed):
            return 0.0
        return max(0.0, min(self._delayed.values(), default=now) - now)

    @_locked
    def give(self, now: float, num_workers: int) -> LoaderPass:
        """Return the next pass: divided batches, else inputs beside others, else inputs alone."""
        ready = [
            index
            for index, state in enumerate(self._states)
            if state == _WAITING and self._delayed.get(index, now) <= now
        ]
        known = {index: self._histories[index] for index in ready if index in self._histories}
        size = max((seen.batch for seen in known.values()), default=0)
        alone = {index for index, seen in known.items() if seen.alone}
        self._is_alone = not size and len(alone) == len(ready)
        if size:
            chosen = [index for index, seen in known.items() if seen.batch == size]
        else:
            chosen = ready if self._is_alone else [i for i in ready if i not in alone]
        self._mark_given(chosen)
        most = min(size or self.largest, self.largest)
        return LoaderPass(chosen, most, 1 if self._is_alone else num_workers, self._is_alone)

    @_locked
    def give_due(self, now: float) -> list[int]:
        """Return the inputs that are due now and may join the current pass, in order."""
        due = sorted(i for i, at in self._delayed.items() if at <= now and self._may_join(i))
        self._mark_given(due)
        return due

    @_locked
    def pass_is_over(self, now: float) -> bool:
        """Return whether the current pass has no input left, and none will join it soon."""
        soon = now + _SOON_SECONDS
        return not self._given and not any(
            due <= soon and self._may_join(index) for index, due in self._delayed.items()
        )

    @_locked
    def give_back(self) -> None:
        """End the pass: its inputs without an outcome wait again."""
        self._states = self._states.replace(bytes([_GIVEN]), bytes([_WAITING]))
        self._given = 0

    @_locked
    def ended(self, index: int, outcome: Outcome, now: float) -> Outcome | None:
        """Record how an attempt ended, and decide whether the input runs again.

        Returns:
            The input's final outcome. None if it runs again, or if it was not given.
        """
        if self._states[index] != _GIVEN:
            return None
        self.progress += 1
        if outcome.unclear:
            self._suspect(index)
            return None
        if index not in self._histories and outcome.kind not in self._retried:
            self._finish(index)
            return outcome
        seen = self._histories.setdefault(index, History())
        seen.faults += 1
        is_retried = outcome.kind in self._retried and outcome.retry_after <= LONGEST_RETRY_AFTER
        if is_retried and seen.faults <= self._retries:
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (seen.faults - 1))
            seen.due = self._delayed[index] = now + max(pause, outcome.retry_after)
            self._wait(index)
            return None
        self._finish(index)
        if not outcome.attempts:
            return outcome  # The input is missing, so the step was not called.
        return outcome._replace(attempts=seen.attempts)

    @_locked
    def worker_lost(self, begun: Iterable[int], cause: int | None = None) -> int | None:
        """Decide which input ended a worker. The others run again, and it is not their fault.

        Args:
            begun: The inputs whose step had begun in the worker and not ended.
            cause: The input that exceeded a limit, if it is known. If other inputs had begun, they
                may have taken the time. So it runs again, alone.

        Returns:
            The input at fault: it needs an outcome. None if all inputs wait again. Without a known
            cause, each one runs alone.
        """
        inputs = [index for index in begun if self._states[index] == _GIVEN]
        if cause is None and len(inputs) == 1:
            (cause,) = inputs
        is_sure = cause not in inputs or len(inputs) == 1
        for index in inputs:
            self.progress += 1
            if index == cause and is_sure:
                seen = self._histories.setdefault(index, History())
                seen.faults, seen.suspected = seen.faults + seen.suspected, 0
                seen.alone = True
            elif cause in (None, index):
                self._suspect(index)
            else:
                self._histories.setdefault(index, History()).interrupted += 1
                self._wait(index)
        is_open = is_sure and cause is not None and self._states[cause] == _GIVEN
        return cause if is_open else None

    @_locked
    def divide(self, indices: Sequence[int], batch_size: int) -> None:
        """Schedule the inputs of a failed batch again, in batches of this size."""
        self.progress += 1
        for index in indices:
            self._histories.setdefault(index, History()).batch = batch_size
            self._wait(index)

    @_locked
    def limit_batches(self, batch_size: int) -> None:
        """Limit the size of all batches from now on."""
        self.progress += 1
        self.largest = batch_size

    @_locked
    def leave_out(self, free: Iterable[int]) -> int:
        """Remove the last inputs, if nothing has happened to them. They get no outcome.

        Args:
            free: The given inputs that no worker has taken.

        Returns:
            The first index that is left out. It is not the first input.
        """
        known, boundary = set(free), len(self._states)
        while boundary > 1:
            index = boundary - 1
            is_free = self._states[index] == _WAITING or index in known
            if not is_free or index in self._histories or self._states[index] == _FINAL:
                break
            self._finish(index)
            boundary = index
        return boundary

    def _may_join(self, index: int) -> bool:
        seen = self._histories[index]
        return not (self._is_alone or seen.alone or seen.batch)

    def _suspect(self, index: int) -> None:
        seen = self._histories.setdefault(index, History())
        seen.suspected += 1
        seen.alone = True
        self._wait(index)

    def _mark_given(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._states[index] = _GIVEN
            self._given += 1
            self._delayed.pop(index, None)
            if index in self._histories:
                self._histories[index].due = self._histories[index].batch = 0

    def _wait(self, index: int) -> None:
        self._leave_pass(index, _WAITING)

    def _finish(self, index: int) -> None:
        self._leave_pass(index, _FINAL)
        self._delayed.pop(index, None)
        self._open -= 1

    def _leave_pass(self, index: int, state: int) -> None:
        if self._states[index] == _GIVEN:
            self._given -= 1
        self._states[index] = state
