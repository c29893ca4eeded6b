"""The torch Datasets whose items are inputs: a DataLoader worker runs an input to load its item.

`GuardedInputs` runs one input at a time. `ConcurrentInputs` runs the inputs of an async step: many
at a time, in one event loop.
"""

import asyncio
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

from batchmill.outcome import RETRIED_KINDS, Outcome, UnstoredOutcome
from batchmill.workers.control import Pace, SharedBatches, SharedFlag, StopIndex
from batchmill.workers.input_queue import pause_before_retry
from batchmill.workers.loaded_batches import Sample
from batchmill.workers.pipeline import MAX_BYTES, MAX_TRANSFERS, TransferPipeline
from batchmill.workers.worker import this_worker
from batchmill.workers.worker_channel import LOG_TAIL_BYTES

_POLL_SECONDS = 0.05
# The same, for batches that another worker has taken ahead.
_AHEAD_SECONDS = 0.02

# The item of an input that did not begin.
SKIPPED = -1

# Runs one attempt at an input: its index, and the number of its slot in the worker's channel.
RunAttempt = Callable[[int, int], Awaitable[Outcome]]


@dataclass(frozen=True, kw_only=True)
class GuardedInputs:
    """A map-style torch Dataset that runs inputs in a worker and sends outcomes to its channel.

    An item is only the input's index, so the DataLoader loses no outcome when a worker dies. In a
    batch step, the item is the sample. If the sample is lost, the input is loaded again.
    """

    run: Callable[[int], Outcome | UnstoredOutcome | Sample]
    drain: SharedFlag
    stop_index: StopIndex
    pipeline: TransferPipeline | None = None
    batches: SharedBatches | None = None

    def __getitems__(self, indices: Sequence[int]) -> list[int | Sample]:
        """Execute the inputs of a batch.

        With a pipeline, files are moved while steps run. Then the worker takes its batches from
        `batches`, so that it knows the next batch in time. `indices` are further inputs.
        """
        if self.pipeline is None or self.batches is None:
            return [self[index] for index in indices]
        try:
            batch = self.pipeline.begin_batch(indices, self.batches)
            # Otherwise, a worker without a batch would use up turns without a pause.
            while not batch and self.batches.are_ahead and not self.drain.is_set():
                time.sleep(_AHEAD_SECONDS)
            items = [self[index] for index in batch]
            self.pipeline.end_batch(is_last=self.drain.is_set())
        except BaseException:  # noqa: BLE001
            this_worker.exit_broken()
        return items

    def __getitem__(self, index: int) -> int | Sample:
        if self.drain.is_set():
            return SKIPPED
        if self.pipeline:
            self.pipeline.uploads.wait(MAX_TRANSFERS, MAX_BYTES)
        if self.stop_index.excludes(index):
            return SKIPPED
        try:
            this_worker.channel.begin(index)
            # Check again, now that the channel shows the input. The shard's process sets the flag
            # or the index, and reads the channels afterwards. It must see every input that begins,
            # because it kills workers that seem idle.
            if self.drain.is_set() or self.stop_index.excludes(index):
                this_worker.channel.leave()
                return SKIPPED
            outcome = self.run(index)
            # Do this first, because a timer of the step may expire at any moment.
            signal.setitimer(signal.ITIMER_REAL, 0)
            unused = this_worker.streams.are_unused()
            if isinstance(outcome, Sample):
                # Restore before `leave`: if the worker is broken, its channel must show this input.
                this_worker.restore(unused=unused)
                this_worker.channel.leave()
                return outcome
            if isinstance(outcome, UnstoredOutcome):
                if not self.pipeline:
                    raise TypeError("run returned an UnstoredOutcome, but there is no pipeline")
                self.pipeline.uploads.add(index, outcome)
                this_worker.channel.leave()
                this_worker.restore(unused=unused)
                return index
            if outcome.kind != "ok" and this_worker.streams.has_log():
                outcome = outcome._replace(log=this_worker.channel.log_tail())
            this_worker.channel.finish(index, outcome)
            this_worker.restore(unused=unused)
        except BaseException:  # noqa: BLE001
            # The step has broken its worker. End only the worker, not the shard.
            if self.pipeline:
                with suppress(Exception):
                    self.pipeline.uploads.wait(shows=False)
            this_worker.exit_broken()
        return index


@dataclass(frozen=True, kw_only=True)
class Concurrency:
    """How a worker runs the inputs of an async step.

    Attributes:
        inputs: The number of inputs at a time.
        open: Opens the step in a worker, and returns the function that runs an attempt.
        retries: How often an input is executed again after a failure.
        pace: Limits how many attempts begin in a time. None without a limit.
        keeps_logs: True to keep the printed text of inputs that are ok, too.
    """

    inputs: int
    open: Callable[[], AbstractAsyncContextManager[RunAttempt]]
    retries: int
    pace: Pace | None = None
    keeps_logs: bool = False


@dataclass
class ConcurrentInputs:
    """A map-style torch Dataset. Its first batch runs all inputs that the worker takes.

    So no input waits for others that belong to its batch.
    """

    concurrency: Concurrency
    slots: int
    drain: SharedFlag
    stop_index: StopIndex
    batches: SharedBatches
    _waiting: deque[int] = field(default_factory=deque)

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        """Execute all inputs that this worker takes. `indices` is empty."""
        try:
            # `asyncio.run` would wait at its end for threads of the step that hang.
            asyncio.new_event_loop().run_until_complete(self._run())
        except BaseException:  # noqa: BLE001
            this_worker.exit_broken()
        return list(indices)

    async def _run(self) -> None:
        _capture_streams()
        self._ending = asyncio.Event()
        async with self.concurrency.open() as run:
            watching = asyncio.create_task(self._watch())
            await asyncio.gather(*(self._fill(slot, run) for slot in range(self.slots)))
            watching.cancel()

    async def _watch(self) -> None:
        """Set the event when no further input may begin."""
        while not self.drain.is_set():
            await asyncio.sleep(_POLL_SECONDS)
        self._ending.set()

    async def _fill(self, slot: int, run: RunAttempt) -> None:
        """Execute one input after the other in a slot."""
        while (index := self._next()) is not None:
            # A task has its own context, and a step may cancel it.
            await asyncio.create_task(self._execute(index, slot, run), name=f"input {index}")

    def _next(self) -> int | None:
        while not self.drain.is_set():
            if not self._waiting:
                self._waiting.extend(self.batches.take())
            if not self._waiting:
                return None
            index = self._waiting.popleft()
            if not self.stop_index.excludes(index):
                return index
        return None

    async def _execute(self, index: int, slot: int, run: RunAttempt) -> None:
        channel = this_worker.channel
        try:
            channel.begin(index, slot)
            # The process of the shard sets the flag or the index, and reads the slots afterwards.
            if self.drain.is_set() or self.stop_index.excludes(index):
                channel.leave(slot)
                return
            outcome = await self._attempts(index, slot, run)
            if outcome:
                channel.finish(index, outcome, slot)
            else:
                channel.leave(slot)
            this_worker.restore_settings(may_open_files=True)
        except BaseException:  # noqa: BLE001
            this_worker.exit_broken()

    async def _attempts(self, index: int, slot: int, run: RunAttempt) -> Outcome | None:
        """Return the final outcome of an input; None if the run stops before its next attempt."""
        attempt = 0
        while True:
            attempt += 1
            pace = self.concurrency.pace
            if pace and await self._ends_within(pace.next_turn(), index, slot, attempt):
                return None
            log = _Log()
            _current_log.set(log)
            outcome = await run(index, slot)
            if outcome.kind not in RETRIED_KINDS or attempt > self.concurrency.retries:
                break
            pause = max(pause_before_retry(attempt), outcome.retry_after)
            if await self._ends_within(pause, index, slot, attempt + 1):
                return None
        if outcome.kind != "ok" or self.concurrency.keeps_logs:
            outcome = outcome._replace(log=log.text())
        return outcome._replace(attempts=attempt if outcome.attempts else 0)

    async def _ends_within(self, seconds: float, index: int, slot: int, attempt: int) -> bool:
        """Pause the input of a slot, and return whether no further input may begin."""
        this_worker.channel.pause(slot, has_begun=attempt > 1)
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            this_worker.channel.show(index, slot)
            return False
        return True


class _Log:
    """The end of the text that one input printed and logged."""

    def __init__(self) -> None:
        self._text = ""

    def add(self, text: str) -> None:
        self._text = (self._text + text)[-LOG_TAIL_BYTES:]

    def text(self) -> str:
        return self._text.encode("utf-8", "replace")[-LOG_TAIL_BYTES:].decode("utf-8", "replace")


_current_log: ContextVar[_Log | None] = ContextVar("batchmill_log", default=None)


class _InputStream:
    """A standard stream whose text belongs to the input that writes it.

    Threads of a step that were not started with its context write to the worker's log.
    """

    def __init__(self, other: TextIO) -> None:
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)

    def write(self, text: str) -> int:
        log = _current_log.get()
        if log is None:
            return self._other.write(text)
        log.add(text)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)


def _capture_streams() -> None:
    sys.stdout = cast("TextIO", _InputStream(sys.stdout))
    sys.stderr = cast("TextIO", _InputStream(sys.stderr))
    for handler in logging.root.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
